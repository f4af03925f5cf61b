"""The `forescribe` command: options and messages; what it does lives elsewhere.

Results go to files or stdout, everything for people to stderr. Heavy imports (torch takes seconds)
stay inside the commands, so `forescribe --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from forescribe.asr.batch.interrupts import INTERRUPTED, Stop
from forescribe.asr.errors import ForescribeError, UsageError
from forescribe.asr.printable import one_line, visible

from . import foreign_flags
from . import speakers as speaking

if TYPE_CHECKING:
    from forescribe.asr.batch.batch import Batch, Make
    from forescribe.asr.decode.options import Options
    from forescribe.asr.decode.transcriber import Transcriber
    from forescribe.asr.formats.report import Reports
    from forescribe.asr.model.presets import Pair

    from .console import Console
    from .speaker_options import Asked

AUTO = "auto"
SPINS = "3000"

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


class Command(TyperCommand):
    """A command that also takes the flags of other programs, see `forescribe.cli.foreign_flags`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [p for p in self.get_params(ctx) if p.param_type_name == "option"]
        switches: dict[str, str | None] = {}
        for option in options:
            if getattr(option, "is_flag", False):
                off = next((name for name in option.secondary_opts), None)
                switches |= dict.fromkeys((name for name in option.opts if len(name) > 2), off)
                on = option.opts[0]
                switches |= dict.fromkeys(option.secondary_opts, on)
        named = [o for o in options if not getattr(o, "is_flag", False)]
        valued = frozenset(name for option in named for name in option.opts)
        return super().parse_args(
            ctx, foreign_flags.translate(args, foreign_flags.Known(valued, switches))
        )


Audio = Annotated[
    list[str], typer.Argument(metavar="AUDIO...", help="Recordings or videos; - reads stdin.")
]
Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="AUDIO...",
        help="Recordings or videos, folders, patterns ('calls/**/*.mp3'), lists (a .jsonl with "
        "`audio_filepath` in each line); - reads stdin.",
    ),
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
BatchSize = Annotated[
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
Offline = Annotated[
    bool, typer.Option("--local-files-only/--no-local-files-only", help="Never download weights.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet/--no-quiet", "-q", help="No progress and no summary.")
]
Json = Annotated[
    bool,
    typer.Option("--json/--no-json", help="One JSON line per recording on stdout; implies -q."),
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


@app.command(cls=Command)
def transcribe(
    ctx: typer.Context,
    audio: Inputs,
    recursive: Annotated[
        bool, typer.Option("--recursive/--no-recursive", "-r", help="Folders with all below them.")
    ] = False,
    output_dir: Annotated[
        str, typer.Option("--output-dir", "-o", metavar="DIR", help="Where to; - is stdout.")
    ] = ".",
    output_format: Annotated[
        str,
        typer.Option(
            "--output-format", "-f", metavar="LIST", help="txt, srt, vtt, tsv, json, rttm, all."
        ),
    ] = "all",
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite/--resume",
            help="Do again what an earlier run has done, or skip what has not changed since.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run/--no-dry-run", help="List recordings and results, do nothing."),
    ] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast/--no-fail-fast", help="End with the first failure.")
    ] = False,
    model: Model = None,
    draft: Draft = None,
    language: Language = None,
    task: TaskName = "transcribe",
    initial_prompt: Prompt = None,
    timestamps: Annotated[bool, typer.Option(help="Segments with times.")] = True,
    word_timestamps: Annotated[
        bool | None,
        typer.Option(
            "--word-timestamps/--no-word-timestamps",
            help="A time and a probability for every word (JSON).",
        ),
    ] = None,
    max_line_width: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Subtitles: characters in a line, at most."),
    ] = None,
    max_line_count: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Subtitles: lines at a time, at most.")
    ] = None,
    max_words_per_line: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Subtitles: words in a line, at most.")
    ] = None,
    highlight_words: Annotated[
        bool,
        typer.Option(
            "--highlight-words/--no-highlight-words",
            help="Subtitles: underline each word while it is said.",
        ),
    ] = False,
    guards: Annotated[
        bool,
        typer.Option(
            "--guards/--no-guards",
            help="Decode windows that repeat themselves or look improbable again, at rising "
            "temperatures, and drop text over silence.",
        ),
    ] = True,
    compression_ratio_threshold: Annotated[
        str | None,
        typer.Option(metavar="X", help="Repeats itself above this; None never.  [default: 2.4]"),
    ] = None,
    logprob_threshold: Annotated[
        str | None,
        typer.Option(metavar="X", help="Improbable below this; None never.  [default: -1.0]"),
    ] = None,
    no_speech_threshold: Annotated[
        str | None,
        typer.Option(metavar="P", help="Silence above this; None never.  [default: 0.6]"),
    ] = None,
    temperature_increment_on_fallback: Annotated[
        str | None,
        typer.Option(metavar="X", help="From one try to the next; None: one.  [default: 0.2]"),
    ] = None,
    diarize: Annotated[
        bool, typer.Option("--diarize/--no-diarize", help="Say who speaks, on every word.")
    ] = False,
    diarizer: speaking.DiarizerName = AUTO,
    num_speakers: speaking.NumSpeakers = None,
    min_speakers: speaking.MinSpeakers = None,
    max_speakers: speaking.MaxSpeakers = None,
    known: speaking.KnownFlag = False,
    link_speakers: speaking.LinkSpeakers = False,
    channels: Annotated[
        str,
        typer.Option(
            metavar="HOW", help="mix: all as one. split: each channel is a speaker by itself."
        ),
    ] = "mix",
    vad: Vad = True,
    long_form: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="windows: cut in pauses, decoded together. sequential: Whisper's own way, where a "
            "window starts at the last timestamp of the one before; slower.",
        ),
    ] = "windows",
    condition_on_previous_text: Annotated[
        bool | None,
        typer.Option(
            "--condition-on-previous-text/--no-condition-on-previous-text",
            help="Sequential: a window reads the text before it.  [default: yes]",
        ),
    ] = None,
    gamma: Gamma = AUTO,
    batch_size: BatchSize = 8,
    device: DeviceName = "auto",
    dtype: Dtype = "auto",
    threads: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of the processor; 0 is torch's choice.")
    ] = 0,
    report: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="A page to read, hear and pass on: FILE.html for one recording, a folder for several.",
        ),
    ] = None,
    local_files_only: Offline = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose/--no-verbose", "-v", help="Print segments as they are decoded."),
    ] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Write what is said in recordings as text, subtitles and JSON.

    What an earlier run with the same settings has done is skipped; manifest.jsonl in the output
    folder has a record of every recording.
    """
    from forescribe.asr.batch.batch import Batch
    from forescribe.asr.batch.inputs import discover
    from forescribe.asr.batch.outputs import STDOUT, Destination
    from forescribe.asr.batch.readable import tried, usable
    from forescribe.asr.batch.transcribers import Maker
    from forescribe.asr.formats.report import Reports
    from forescribe.asr.formats.subtitles import LineRules
    from forescribe.asr.model.presets import resolve
    from forescribe.diarize.diarizer import Bounds

    from . import thresholds
    from .console import Console
    from .speaker_options import Asked

    drafts = _gamma(gamma)
    bounds = Bounds(num_speakers, min_speakers, max_speakers)
    asked = Asked(diarizer if diarize else None, bounds, known, channels, link_speakers)
    output_format = _formats(output_format, speakers=asked.speakers)
    if json and output_dir == STDOUT:
        raise UsageError("--json and `-o -` both write to stdout; choose one of them")
    if verbose and (quiet or json):
        raise UsageError("--verbose and --quiet (or --json) exclude each other")
    rules = LineRules(max_line_width, max_line_count, max_words_per_line, highlight_words)
    if word_timestamps is False and (diarize or not rules.plain):
        what = "speakers" if diarize else "line rules"
        raise UsageError(f"{what} need the words' times: leave out --no-word-timestamps")
    _check_long_form(ctx, long_form, condition_on_previous_text)
    watched = thresholds.guards(
        guards,
        compression_ratio=compression_ratio_threshold,
        logprob=logprob_threshold,
        no_speech=no_speech_threshold,
        increment=temperature_increment_on_fallback,
    )
    sources = tried(discover(audio, recursive=recursive), decode=not dry_run)
    work = usable(sources)  # else neither weights nor a model are looked for
    destination = Destination.of(sources, output_dir, output_format, rules=rules, make=not dry_run)
    console = Console(quiet=quiet or json, verbose=verbose, json=json)
    reports = None if report is None else Reports.of(report, destination.stems)
    if reports and word_timestamps is None:
        ctx.params["word_timestamps"] = word_timestamps = True  # a result with them is another one
    if not reports and word_timestamps and rules.plain and "json" not in destination.names:
        console.notice("--word-timestamps: only json holds the times of words; add it to -f")
    pair = resolve(model, draft)
    with Stop() as stop:
        with stop.interruptible():
            batch = Batch(
                sources,
                destination,
                settings=_settings(ctx, pair, asked, network=not (local_files_only or dry_run))
                if work
                else "",
                overwrite=overwrite,
                fail_fast=fail_fast,
                stop=stop,
                notice=console.notice,
            )
        if dry_run:
            _list(batch, json)
            raise typer.Exit(int(not all(source.error is None for source in batch.todo)))
        console.skipped(list(batch.skipped()), len(sources))
        for ended in batch.skipped():
            if reports is not None and not reports.skipped(ended):
                console.notice(
                    f"{ended.record.path}: no report without its JSON; --overwrite -f json"
                )
        if not batch.todo:
            return _reported(reports, console)
        if not work:
            _finished(batch, _needless, None, batch_size, console, reports)
            console.summary(None)
            _reported(reports, console)
            raise typer.Exit(1)
        console.status("loading the model")
        with stop.interruptible():
            from forescribe.asr.decode.transcriber import Options, Transcriber

            options = Options(
                language=language,
                task=task,  # type: ignore[arg-type]  # Options refuses what is no task
                timestamps=timestamps,
                initial_prompt=initial_prompt,
                vad=vad,
                words=bool(word_timestamps) or not rules.plain,
                guards=watched,
                long_form=long_form,  # type: ignore[arg-type]  # checked above
                condition_on_previous_text=condition_on_previous_text is not False,
            )

        def load(size: int) -> Transcriber:
            if threads:
                import torch

                torch.set_num_threads(threads)
            return Transcriber.load(
                model,
                draft,
                language=language,
                device=device,
                dtype=dtype,
                batch=size,
                gamma=drafts,
                network=not local_files_only,
            )

        with stop.interruptible():
            over = asked.load(
                device=device, network=not local_files_only, folder=destination.folder
            )
        make = Maker(load)
        interrupted = not _finished(
            batch, lambda size: over(make(size)), options, batch_size, console, reports
        )
        console.summary(make.stats())
        _reported(reports, console)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if console.failed:
        raise typer.Exit(1)


@app.command(cls=Command)
def audit(
    audio: Audio,
    model: Model = None,
    draft: Draft = None,
    language: Language = None,
    task: TaskName = "transcribe",
    vad: Vad = True,
    gamma: Gamma = "5",
    batch_size: BatchSize = 8,
    device: DeviceName = "auto",
    dtype: Dtype = "auto",
    local_files_only: Offline = False,
    json: Json = False,
) -> None:
    """Report every token that speculation changed, with its margin."""
    from forescribe.asr.audit import Report
    from forescribe.asr.audit import audit as compare
    from forescribe.asr.batch.inputs import Source
    from forescribe.asr.batch.readable import tried, usable
    from forescribe.asr.decode.transcriber import Options
    from forescribe.asr.model.loading import load
    from forescribe.asr.model.presets import resolve
    from forescribe.speculative.device import choose

    drafts = _gamma(gamma)
    if not drafts:
        raise UsageError(
            f"--gamma {gamma}: an audit compares a fixed number of drafts, 1 or more, with "
            "plain decoding"
        )
    options = Options(language=language, task=task, vad=vad)  # type: ignore[arg-type]
    pair = resolve(model, draft, language)
    sources = tried(map(Source, audio))
    if usable(sources):
        whisper = load(pair, choose(device, dtype), network=not local_files_only)
        reports = compare(whisper, audio, options, gamma=drafts, batch=batch_size)
    else:
        reports = (Report(source.path, error=str(source.error)) for source in sources)
    differences = failures = 0
    for report in reports:
        typer.echo(report.to_json() if json else report.to_text())
        differences += len(report.differences)
        failures += report.error is not None
    if differences or failures:
        raise typer.Exit(1)


@app.command()
def models() -> None:
    """List the presets and which of them are on this machine."""
    from forescribe.asr.model.presets import cached

    for entry in cached():
        preset = entry.preset
        drafts = ", ".join(d.name for d in preset.drafts) or "-"
        here = {(True, True): "ready", (True, None): "ready", (True, False): "target only"}
        state = here.get((entry.target, entry.draft), "-")
        typer.echo(f"{preset.name:18} {state:12} {preset.target:38} {drafts}")
        typer.echo(f"{'':18} {'':12} {preset.note}")


app.command(cls=Command)(speaking.diarize)
app.add_typer(speaking.speakers)


def main() -> None:
    """The console entry: one line per error, no traceback for a user's mistake.

    `forescribe recording.mp3` means `forescribe transcribe recording.mp3`. Exit status: 0 all good,
    1 some recordings failed, 2 usage, 130 interrupted.
    """
    from forescribe.speculative.errors import SpeculativeError

    try:
        arguments = _with_command(sys.argv[1:])
        if arguments[:1] != ["bench"]:  # there all run as they come
            _wait_briefly()
        app(args=arguments, prog_name="forescribe")
    except (ForescribeError, SpeculativeError) as error:
        typer.echo(f"forescribe: {one_line(str(error))}", err=True)
        sys.exit(2)
    except SystemExit as left:
        if left.code == INTERRUPTED:  # typer's answer to Ctrl-C
            typer.echo("forescribe: interrupted", err=True)
        raise
    except KeyboardInterrupt:  # before typer listens
        typer.echo("forescribe: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of stdout has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _wait_briefly() -> None:
    """For how many turns a helper thread of torch's waits awake: read by libgomp when it is loaded.

    Its own choice, 300,000, is no faster on idle cores, and two and a half times slower beside another
    process: helpers then wait awake for one that has no core (docs/development/log.md,
    2026-11-22).
    """
    if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        os.environ["GOMP_SPINCOUNT"] = SPINS


# What changes no word: everything else that a user can say is part of a result's fingerprint. A
# draft or its length changes none in float32; in half precision it may flip a near-tie, which is no
# reason to do a folder again.
_NO_WORD = frozenset(
    "audio recursive output_dir output_format overwrite dry_run fail_fast model draft gamma batch_size "
    "device threads report local_files_only verbose quiet json".split()
) | {
    # These have settings of their own, see `forescribe.cli.speaker_options`.
    "diarize",
    "diarizer",
    "num_speakers",
    "min_speakers",
    "max_speakers",
    "known",
    "link_speakers",
    "channels",
}


def _settings(ctx: typer.Context, pair: Pair, asked: Asked, *, network: bool) -> str:
    """The hash of what decides a result, weights included. Looks for them, and fetches them if it
    may; raises ModelError only then."""
    from forescribe.asr.batch import fingerprint
    from forescribe.asr.model.hub import find, locate

    folder = locate(pair.target) if network else find(pair.target)
    said = {
        name: value.lower() if name == "language" else value
        for name, value in ctx.params.items()
        if name not in _NO_WORD and value is not None and value is not False and value != AUTO
    }
    model = str(pair.target) if folder is None else fingerprint.weights(folder)
    speakers = asked.settings(network=network) if asked.speakers else {}
    return fingerprint.settings({**said, **speakers, "model": model})


def _needless(size: int) -> Transcriber:
    raise AssertionError("a model was asked for where every recording had failed")


def _finished(
    batch: Batch,
    make: Make,
    options: Options | None,
    size: int,
    console: Console,
    reports: Reports | None,
) -> bool:
    """Runs it and says what ends; False where it was interrupted."""
    try:
        # What goes to stdout stands on the terminal by itself, if stdout is one.
        text = batch.destination.folder is not None or not sys.stdout.isatty()
        with console.progress(batch.todo, text=text) as hook:
            for ended in batch.run(make, options, size=size, hook=hook):
                console.ended(ended)
                if reports:
                    reports.add(ended)
    except KeyboardInterrupt:
        return False
    return True


def _reported(reports: Reports | None, console: Console) -> None:
    """Says where the report is. Raises OutputError where it could not be written."""
    for path in reports.close() if reports else ():
        console.status(f"report: {path}")


def _formats(names: str, *, speakers: bool) -> str:
    """The formats asked for; `all` has those of speakers too where there are any. Raises
    UsageError."""
    from forescribe.asr.formats.files import OF_SPEAKERS

    wanted = [name.strip().lower() for name in names.split(",")]
    without = [name for name in wanted if name in OF_SPEAKERS]
    if without and not speakers:
        raise UsageError(f"-f {without[0]} says who speaks: add --diarize")
    more = sorted(OF_SPEAKERS) if speakers and "all" in wanted else []
    return ",".join([names, *more])


def _list(batch: Batch, as_json: bool) -> None:
    """A line per recording: what would be written, or that it would be skipped."""
    from .console import named

    done = {source.path for source in batch.done}
    for source in [*batch.done, *batch.todo]:
        path, error = source.path, source.error
        files = batch.files(source)
        status = "failed" if error else "skipped" if path in done else "pending"
        if as_json:
            entry = {"path": path, "status": status, "outputs": [*map(str, files)]}
            if error:
                entry |= {"code": error.code, "message": error.message}
            typer.echo(dumps(entry))
            continue
        names = f"-> {named(files)}" if files else "-> stdout"
        said = f"{path}: already done" if status == "skipped" else f"{path} {names}"
        typer.echo(f"failed: {error.message}" if error else visible(said))


def _check_long_form(ctx: typer.Context, long_form: str, previous: bool | None) -> None:
    """Options that one of the two ways has no use for are refused, not ignored."""
    if long_form not in ("windows", "sequential"):
        raise UsageError(f"--long-form {long_form} is neither windows nor sequential")
    if long_form == "windows" and previous:
        raise UsageError(
            "--condition-on-previous-text: windows are decoded at the same time, so none has a "
            "previous text; leave it out, or take --long-form sequential"
        )
    source = ctx.get_parameter_source("vad")
    asked = ctx.params["vad"] and source is not None and source.name == "COMMANDLINE"
    if long_form == "sequential" and asked:
        raise UsageError(
            "--vad: sequential decoding cuts at timestamps, never in pauses; leave it out"
        )


def _gamma(text: str) -> int | None:
    """A number of drafts; None for auto. Raises UsageError."""
    if text.lower() == AUTO:
        return None
    if not text.isdecimal() or int(text) > 64:
        raise UsageError(f"--gamma {text} is neither auto nor a number from 0 to 64")
    return int(text)


def _with_command(arguments: list[str]) -> list[str]:
    """What is no command and no option of the whole is the beginning of `transcribe`'s."""
    known = {*get_command(app).list_commands(None), "-h", "--help", "--version"}  # type: ignore
    if arguments and arguments[0] not in known:
        return ["transcribe", *arguments]
    return arguments
