"""The `forescribe` command: options and messages; what it does lives elsewhere.

Results go to files or stdout, everything for people to stderr. Heavy imports (torch takes seconds)
stay inside the commands, so `forescribe --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from asr.errors import ForescribeError, UsageError

AUTO = "auto"
INTERRUPTED = 130  # 128 + SIGINT, as shells count

app = typer.Typer(
    name="forescribe",
    help="Whisper's own words, sooner: transcription by lossless speculative decoding. "
    "`forescribe AUDIO...` alone means `forescribe transcribe AUDIO...`.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={
        "help_option_names": ["-h", "--help"],
        # Fingers know both spellings: --output_dir (openai/whisper) and --output-dir.
        "token_normalize_func": lambda token: token.replace("_", "-"),
    },
)

Audio = Annotated[
    list[str], typer.Argument(metavar="AUDIO...", help="Recordings or videos; - reads stdin.")
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help="Preset (see `forescribe models`), hub id or local folder.  [default: large]",
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        "--draft-model",
        metavar="NAME",
        help="Likewise; `none` drafts by lookup only.  [default: the model's own]",
    ),
]
Language = Annotated[
    str | None,
    typer.Option("--language", "-l", metavar="LANG", help="Code or English name.  [default: auto]"),
]
TaskName = Annotated[
    str, typer.Option("--task", metavar="TASK", help="transcribe, or translate (into English).")
]
Gamma = Annotated[
    str,
    typer.Option(
        "--gamma",
        metavar="N",
        help="Drafted tokens per round, 0 to 64, or auto; 0 decodes plainly.",
    ),
]
Batch = Annotated[
    int,
    typer.Option("--batch-size", metavar="N", min=1, max=1024, help="Windows decoded together."),
]
DeviceName = Annotated[
    str, typer.Option("--device", metavar="NAME", help="auto, cuda, cuda:N, hpu, mps or cpu.")
]
Dtype = Annotated[
    str, typer.Option("--dtype", metavar="TYPE", help="auto, float32, float16 or bfloat16.")
]
Prompt = Annotated[
    str | None,
    typer.Option("--initial-prompt", metavar="TEXT", help="Names and spellings to expect."),
]
Vad = Annotated[bool, typer.Option(help="Cut in pauses and skip silence; else every 30 s.")]
Offline = Annotated[bool, typer.Option("--local-files-only", help="Never download weights.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no summary.")]
Json = Annotated[
    bool, typer.Option("--json", help="One JSON line per recording on stdout; implies --quiet.")
]


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"forescribe {installed('forescribe')}")
        raise typer.Exit


@app.command()
def transcribe(
    audio: Audio,
    output_dir: Annotated[
        str, typer.Option("--output-dir", "-o", metavar="DIR", help="Where to; - is stdout.")
    ] = ".",
    output_format: Annotated[
        str,
        typer.Option(
            "--output-format", "-f", metavar="LIST", help="txt, srt, vtt, tsv, json, all."
        ),
    ] = "all",
    model: Model = None,
    draft: Draft = None,
    language: Language = None,
    task: TaskName = "transcribe",
    initial_prompt: Prompt = None,
    timestamps: Annotated[bool, typer.Option(help="Segments with times.")] = True,
    word_timestamps: Annotated[
        bool,
        typer.Option("--word-timestamps", help="A time and a probability for every word (JSON)."),
    ] = False,
    guards: Annotated[
        bool,
        typer.Option(
            "--guards",
            help="Decode windows that repeat themselves or look improbable again, at rising "
            "temperatures, and drop text over silence.",
        ),
    ] = False,
    vad: Vad = True,
    gamma: Gamma = AUTO,
    batch_size: Batch = 8,
    device: DeviceName = "auto",
    dtype: Dtype = "auto",
    local_files_only: Offline = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print segments as they are decoded.")
    ] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Write what is said in recordings as text, subtitles and JSON."""
    from asr.console import Console
    from asr.outputs import STDOUT, Destination

    drafts = _gamma(gamma)
    if json and output_dir == STDOUT:
        raise UsageError("--json and `-o -` both write to stdout; choose one of them")
    if verbose and (quiet or json):
        raise UsageError("--verbose and --quiet (or --json) exclude each other")
    destination = Destination.of(audio, output_dir, output_format)
    console = Console(quiet=quiet or json, verbose=verbose, json=json)
    console.status("loading the model")

    from asr.guards import Guards
    from asr.transcriber import Options, Transcriber

    options = Options(
        language=language,
        task=task,  # type: ignore[arg-type]  # Options refuses what is no task
        timestamps=timestamps,
        initial_prompt=initial_prompt,
        vad=vad,
        words=word_timestamps,
        guards=Guards() if guards else None,
    )
    transcriber = Transcriber.load(
        model,
        draft,
        language=language,
        device=device,
        dtype=dtype,
        batch=batch_size,
        gamma=drafts,
        network=not local_files_only,
    )
    failures = 0
    with console.progress(len(audio)) as hook:
        for outcome in transcriber.transcribe(audio, options, hook):
            outputs: list[Path] = []
            error = outcome.error
            if outcome.transcript is not None:
                try:
                    outputs = destination.write(outcome.name, outcome.transcript)
                except ForescribeError as refused:
                    error = refused
            failures += error is not None
            console.outcome(outcome, error, outputs)
    console.summary(transcriber.stats(), failures)
    if failures:
        raise typer.Exit(1)


@app.command()
def audit(
    audio: Audio,
    model: Model = None,
    draft: Draft = None,
    language: Language = None,
    task: TaskName = "transcribe",
    vad: Vad = True,
    gamma: Gamma = "5",
    batch_size: Batch = 8,
    device: DeviceName = "auto",
    dtype: Dtype = "auto",
    local_files_only: Offline = False,
    json: Json = False,
) -> None:
    """Report every token that speculation changed, with its margin."""
    from asr.audit import audit as compare
    from asr.loading import load
    from asr.presets import resolve
    from asr.transcriber import Options
    from speculative.device import choose

    drafts = _gamma(gamma)
    if not drafts:
        raise UsageError(
            f"--gamma {gamma}: an audit compares a fixed number of drafts, 1 or more, with "
            "plain decoding"
        )
    options = Options(language=language, task=task, vad=vad)  # type: ignore[arg-type]
    pair = resolve(model, draft, language)
    whisper = load(pair, choose(device, dtype), network=not local_files_only)
    differences = failures = 0
    for report in compare(whisper, audio, options, gamma=drafts, batch=batch_size):
        typer.echo(report.to_json() if json else report.to_text())
        differences += len(report.differences)
        failures += report.error is not None
    if differences or failures:
        raise typer.Exit(1)


@app.command()
def models() -> None:
    """List the presets and which of them are on this machine."""
    from asr.presets import cached

    for entry in cached():
        preset = entry.preset
        drafts = ", ".join(d.name for d in preset.drafts) or "-"
        here = {(True, True): "ready", (True, None): "ready", (True, False): "target only"}
        state = here.get((entry.target, entry.draft), "-")
        typer.echo(f"{preset.name:18} {state:12} {preset.target:38} {drafts}")
        typer.echo(f"{'':18} {'':12} {preset.note}")


def main() -> None:
    """The console entry: one line per error, no traceback for a user's mistake.

    `forescribe recording.mp3` means `forescribe transcribe recording.mp3`. Exit status: 0 all good,
    1 some recordings failed, 2 usage, 130 interrupted.
    """
    from speculative.errors import SpeculativeError

    try:
        app(args=_with_command(sys.argv[1:]), prog_name="forescribe")
    except (ForescribeError, SpeculativeError) as error:
        typer.echo(f"forescribe: {error}", err=True)
        sys.exit(2)
    except SystemExit as left:
        if left.code == INTERRUPTED:  # typer's answer to Ctrl-C
            typer.echo("forescribe: interrupted", err=True)
        raise
    except BrokenPipeError:  # the reader of stdout has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _gamma(text: str) -> int | None:
    """A number of drafts; None for auto. Raises UsageError."""
    if text.lower() == AUTO:
        return None
    if not text.isdecimal() or int(text) > 64:
        raise UsageError(f"--gamma {text} is neither auto nor a number from 0 to 64")
    return int(text)


def _with_command(arguments: list[str]) -> list[str]:
    """What is no command and no option of the whole is the beginning of `transcribe`'s."""
    known = {"transcribe", "audit", "models", "-h", "--help", "--version"}
    if arguments and arguments[0] not in known:
        return ["transcribe", *arguments]
    return arguments
