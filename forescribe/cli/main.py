"""The `forescribe` command: all commands in one app, and the console entry.

Knows which commands there are, and how errors become messages and exit codes. Heavy imports stay inside the
commands.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any

import typer
from typer.main import get_command

from forescribe.asr.batch.interrupts import INTERRUPTED, tell_at_the_end
from forescribe.asr.errors import ForescribeError, UsageError, one_line

from .audit import audit
from .diarize import diarize
from .distill import distill
from .export import export
from .generate import generate
from .listen import listen
from .models import models
from .option_records import SectionedCommand
from .service import key, serve, worker
from .speakers import speakers
from .transcribe import transcribe

CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    # Both spellings are in use: --output_dir (openai/whisper) and --output-dir.
    "token_normalize_func": lambda token: token.replace("_", "-"),
}
"""What all commands share, in typer's words."""

GLOBAL = ("-h", "--help", "--version", "--install-completion", "--show-completion")
"""Options that stand before a command."""

app = typer.Typer(
    name="forescribe",
    help="Transcribe speech with Whisper. A draft model makes it faster and leaves the words unchanged. "
    "`forescribe AUDIO...` is short for `forescribe transcribe AUDIO...`.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"forescribe {installed('forescribe')}")
        raise typer.Exit


for one in (transcribe, export, listen, audit, models, distill, diarize):
    app.command(cls=SectionedCommand)(one)
app.add_typer(speakers)
for one in (generate, serve, worker, key):
    app.command(cls=SectionedCommand)(one)


def main() -> None:
    """The console entry: one line per error, no traceback for a user's mistake.

    `forescribe recording.mp3` means `forescribe transcribe recording.mp3`. Exit codes: 0 success,
    1 some recordings failed, 2 usage, 130 interrupted.
    """
    limit_spinning()
    with reported():
        command()(args=with_command(sys.argv[1:]), prog_name="forescribe")


@cache
def command() -> Any:
    """The group of all commands; making it takes as long as reading a command line."""
    return get_command(app)


@contextmanager
def reported() -> Iterator[None]:
    """Turn exceptions into a line on stderr and an exit code."""
    from forescribe.speculative.errors import SpeculativeError

    try:
        yield
    except (ForescribeError, SpeculativeError) as error:
        typer.echo(f"forescribe: {one_line(str(error))}", err=True)
        sys.exit(2)
    except SystemExit as left:
        if left.code == INTERRUPTED:  # typer's answer to Ctrl-C
            tell_at_the_end()
        raise
    except KeyboardInterrupt:  # before typer handles it
        tell_at_the_end()
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of stdout has closed it, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def with_command(arguments: list[str]) -> list[str]:
    """The arguments with `transcribe` in front, unless they begin with a command or a global option.
    Raises UsageError for what looks like a command and is no file."""
    commands = command().list_commands(None)
    if not arguments or arguments[0].partition("=")[0] in {*commands, *GLOBAL}:
        return arguments
    if os.sep in arguments[0] or os.path.lexists(arguments[0]):
        return ["transcribe", *arguments]
    meant = get_close_matches(arguments[0].lower(), commands, n=1, cutoff=0.7)
    if meant:
        raise UsageError(
            f"{arguments[0]!r} is neither a command nor a file: did you mean {meant[0]!r}?"
        )
    return ["transcribe", *arguments]


def limit_spinning() -> None:
    """Limit how long idle OpenMP threads of torch spin, unless the environment sets it; libgomp reads
    it when it is loaded.

    Its default, 300,000 spins, is no faster on idle cores, and two and a half times slower beside
    another process, whose cores the spinning threads occupy (24.8 s instead of 9.7, docs/performance.md).
    """
    if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        os.environ["GOMP_SPINCOUNT"] = "3000"
