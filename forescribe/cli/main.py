"""The `forescribe` command: all commands in one app, the console entry, and `forescribe models`.

Knows which commands there are, how errors become messages and exit codes, and how lists of models are
printed; presets are in `asr.model.presets`. Heavy imports stay
inside the commands.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from forescribe.asr.batch.interrupts import INTERRUPTED, tell_at_the_end
from forescribe.asr.errors import ForescribeError, UsageError, one_line

from .audit import audit
from .diarize import diarize
from .distill import distill
from .generate import generate
from .listen import listen
from .option_records import GONE, SectionedCommand, arg, takes
from .options import JsonOptions
from .service import key, serve, worker
from .speakers import speakers
from .transcribe import transcribe

SPIN_COUNT = "3000"

CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    # Both spellings are in use: --output_dir (openai/whisper) and --output-dir.
    "token_normalize_func": lambda token: token.replace("_", "-"),
}
"""What all commands share, in typer's words."""

app = typer.Typer(
    name="forescribe",
    help="Transcribe speech with Whisper. A draft model makes it faster and leaves the words unchanged. "
    "`forescribe AUDIO...` is short for `forescribe transcribe AUDIO...`.",
    no_args_is_help=True,
    add_completion=False,
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


@dataclass(frozen=True, kw_only=True)
class ModelsOptions(JsonOptions):
    """The parsed command line."""

    name: str | None = arg(
        "[NAME]",
        "A name as for --model: what it loads, where that is, and what it would download.",
        None,
    )


@takes(ModelsOptions)
def models(**values: Any) -> None:
    """List the model presets.

    Of each: name, state (ready, target only, or - if it is not downloaded), target and drafts. With NAME:
    what that would load, where it is, and what it would download. Nothing is downloaded."""
    options = ModelsOptions(**values)
    if options.name is not None:
        _print(_loaded_by(options.name), _one_model, as_json=options.json)
        return
    _print(_all_models(), _lists, as_json=options.json)


app.command(cls=SectionedCommand)(transcribe)
app.command(cls=SectionedCommand)(listen)
app.command(cls=SectionedCommand)(audit)
app.command(cls=SectionedCommand)(models)
app.command(cls=SectionedCommand)(distill)
app.command(cls=SectionedCommand)(diarize)
app.add_typer(speakers)
app.command(cls=SectionedCommand)(generate)
app.command(cls=SectionedCommand)(serve)
app.command(cls=SectionedCommand)(worker)
app.command(cls=SectionedCommand)(key)


def main() -> None:
    """The console entry: one line per error, no traceback for a user's mistake.

    `forescribe recording.mp3` means `forescribe transcribe recording.mp3`. Exit codes: 0 success,
    1 some recordings failed, 2 usage, 130 interrupted.
    """
    limit_spinning()
    with reported():
        app(args=with_command(sys.argv[1:]), prog_name="forescribe")


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
    group = get_command(app)
    commands = group.list_commands(None)  # type: ignore[attr-defined]  # a group
    if not arguments or arguments[0] in {*commands, "-h", "--help", "--version"}:
        return arguments
    if os.sep in arguments[0] or os.path.lexists(arguments[0]):
        return ["transcribe", *arguments]
    if arguments[0] in GONE:
        raise UsageError(f"{arguments[0]} is gone: {GONE[arguments[0]]}")
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
    another process, whose cores the spinning threads occupy (docs/development/log.md, 2026-11-22).
    """
    if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT


def _print(content: dict[str, Any], lines: Any, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(content, ensure_ascii=False))
        return
    for line in lines(content):
        typer.echo(line)


def _all_models() -> dict[str, Any]:
    from forescribe.asr.model.presets import cached

    presets = []
    for entry in cached():
        preset = entry.preset
        state = "target only" if entry.draft is False else "ready"
        presets.append(
            {
                "name": preset.name,
                "state": state if entry.target else None,
                "target": preset.target,
                "drafts": [draft.name for draft in preset.drafts],
                "note": preset.note,
            }
        )
    return {"presets": presets}


def _lists(content: dict[str, Any]) -> Iterator[str]:
    for preset in content["presets"]:
        drafts = ", ".join(preset["drafts"]) or "-"
        yield f"{preset['name']:18} {preset['state'] or '-':12} {preset['target']:38} {drafts}"
        yield f"{'':18} {'':12} {preset['note']}"


def _loaded_by(name: str) -> dict[str, Any]:
    from forescribe.asr.model.presets import resolve

    pair = resolve(name, None)
    parts = [("target", pair.target), *(("draft", draft) for draft in pair.drafts)]
    return {"name": name, "loads": [_part(role, str(source)) for role, source in parts]}


def _part(role: str, source: str) -> dict[str, Any]:
    """What is known of a model: where it is, or what would be downloaded."""
    from forescribe.asr.model.presets import WHISPER
    from forescribe.speculative.models.hub import HubError, find, would_download

    known: dict[str, Any] = {"role": role, "name": source}
    here = Path(source) if Path(source).is_file() else find(source, WHISPER.missing)
    if here is not None:
        files = [here] if here.is_file() else [path for path in here.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        return known | {"on_this_machine": True, "path": str(here), "size_bytes": size}
    known["on_this_machine"] = False
    try:
        download = would_download(source, WHISPER)
    except HubError as error:
        return known | {"problem": str(error)}
    size = sum(download.files.values())
    return known | {"download": download.files, "size_bytes": size, "licence": download.licence}


def _one_model(content: dict[str, Any]) -> Iterator[str]:
    for part in content["loads"]:
        head = f"{part['role']:7} {part['name']}"
        if part["on_this_machine"]:
            yield f"{head}: on this machine, {_size(part['size_bytes'])}"
            yield f"{'':8}{part['path']}"
        elif "problem" in part:
            yield f"{head}: not on this machine; {part['problem']}"
        else:
            yield f"{head}: would download {_size(part['size_bytes'])}"
            for file, size in part["download"].items():
                yield f"{'':8}{_size(size):>9}  {file}"
        if part.get("licence"):
            yield f"{'':8}licence: {part['licence']}"


def _size(size: int) -> str:
    """A number of bytes in decimal units, as hubs give them."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.{1 if size < 10 * factor else 0}f} {unit}"
    return f"{size} B"


if __name__ == "__main__":
    main()
