"""Commands whose options arrive as one frozen record, with help grouped by section.

    @dataclass(frozen=True, kw_only=True)
    class GreetOptions:
        name: str = arg("NAME", "Who to greet.")
        times: int = opt(DECODING, "-n N", "How often.", 1, min=1)
        loud: bool = opt(OUTPUT, "--loud", "Use capital letters.", False)

    @app.command(cls=SectionedCommand)
    @takes(GreetOptions)
    def greet(**values: Any) -> None:
        options = GreetOptions(**values)

An option is declared once, in a record that several commands inherit; `like` takes a single option from
such a record, with other words or another default. A record checks its values in `__post_init__`, so that
a command never sees a combination that is impossible.

Flags that are gone, and those of openai/whisper, whisperX, faster-whisper and whisper.cpp that have no
meaning here, are refused with one line on what to use. Other programs' names for what a command has stand in
the declaration of its option. Knows nothing of individual commands.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

from forescribe.asr.errors import UsageError

SERVICE = "Service"
INPUT = "Input"
OUTPUT = "Output"
MODEL = "Model"
DECODING = "Decoding"
TRAINING = "Training"
SPEAKERS = "Speakers"
PERFORMANCE = "Performance"
DIAGNOSTICS = "Diagnostics"
SECTIONS = (
    SERVICE,
    INPUT,
    OUTPUT,
    MODEL,
    DECODING,
    TRAINING,
    SPEAKERS,
    PERFORMANCE,
    DIAGNOSTICS,
)
"""Headings of `--help`, in this order. Options without a section, such as `--help`, come last."""

GONE: Mapping[str, str] = {
    # For one version: a flag, or a command, and what to use instead.
    "--server": "record in the page of `forescribe serve`, or send audio to its /v1/realtime",
    "--rate": "send a wav file through the pipe, whose rate is in its header",
    "--max-minutes": "timeout 90m forescribe listen ends after 90 minutes",
    "--link-speakers": "enrol people with `forescribe speakers add`, and use --known",
    "--drafter": "leave it out: --draft names what drafts, or --reference-text with --draft none",
    "draft-head": "use distill RECORDINGS --draft DRAFT --cut-head --steps 0 -o FOLDER",
    "prune": "use distill RECORDINGS --layers N --steps 0 -o FOLDER",
    "--text": "distill makes drafts for Whisper alone; generate takes published drafts and heads",
    "--spool-bytes": "leave it out: copies take half of the free space; --spool names another disk",
    "--served-batch": "leave it out: a draft that saves rounds at batch 1 does at others",
    "--mix": "name the general recordings beside your own",
    "--choose": "leave it out: layers are taken evenly from the first to the last",
    "--on-policy": "leave it out: it was off unless asked for",
    "--min-p": "send it to `forescribe serve`: generate has --top-p, --top-k and --temperature",
    "--presence-penalty": "use --repetition-penalty, or send it to `forescribe serve`",
    "--frequency-penalty": "use --repetition-penalty, or send it to `forescribe serve`",
    "bench": "use python -m benchmarks.transcribe or .text in the repository",
    "--json": "-f json writes transcripts as JSON, -o - prints one; --records prints what became of each",
    "--limit": "for one key: --max-requests N; a gateway in front counts what keys use",
    "--long-form": "leave it out: windows are decoded together; --beam-size 5 writes fewer wrong words",
    "--condition-on-previous-text": "leave it out: what is left of a window reads the text before it, and "
    "windows are read alone; --beam-size 5 writes fewer wrong words",
    "status": "a run says how much is done when it begins: repeat it with --dry-run; a cluster is shown by "
    "Ray's dashboard",
}
"""Flags and commands of the version before."""

PAUSES = "leave it out: windows are cut in pauses by fixed thresholds; --no-vad decodes silence too"
ALIGNMENT = "use --word-timestamps: word times come from the model's own attention"
CLIP = "cut the recording before, such as with ffmpeg: all of it is transcribed"
SOUND = "filter the sound before, such as with ffmpeg"
PRINTED = "leave it out: --quiet prints less, --verbose the text"
LINES = "use --max-line-width N, --max-line-count N and --max-words-per-line N"
REPEATED = "leave it out: windows that repeat themselves are decoded again, see --guards"
ONE_LETTER = "options of one dash are one letter here: "

FOREIGN: Mapping[str, str] = {
    name: instead
    for names, instead in {
        "--best-of -bo": "leave it out: a window that is decoded again is sampled once at each temperature",
        "--temperature -tp": "leave it out: the text is the most probable one, or with --beam-size 5 that "
        "of beams; doubtful windows are decoded again at rising temperatures, see --guards",
        "-bs": "use --beam-size N",
        "-tpi": "use --temperature-increment-on-fallback STEP",
        "-nf --no-fallback": "use --temperature-increment-on-fallback None, or --no-guards",
        "-et --entropy-thold": "use --compression-ratio-threshold RATIO, another measure of repetitions",
        "-lpt": "use --logprob-threshold LOGPROB",
        "-nth": "use --no-speech-threshold PROB",
        "--repetition-penalty --no-repeat-ngram-size": REPEATED,
        "--suppress-tokens --suppress-blank --suppress-nst -sns --suppress-regex": "leave it out: the "
        "model's own list is used",
        "--suppress-numerals": "leave it out: words of digits have times too",
        "--hotwords": "use --terms FILE, a list of names and terms, one a line",
        "--prefix --grammar --grammar-rule --grammar-penalty": "use --initial-prompt, or --terms FILE",
        "--carry-initial-prompt": "leave it out: every window reads --initial-prompt",
        "--prompt-reset-on-temperature": "leave it out: windows are read alone",
        "-mc --max-context": "leave it out: windows are read alone",
        "--translate -tr": "use --task translate",
        "--detect-langs": "use --language de,en",
        "-dl --detect-language --multilingual": "leave it out: the language is detected, window by window",
        "--fp16": "use --dtype float16, or --dtype float32 for False",
        "--compute-type": "use --dtype float16, bfloat16 or float32, or --quantize int8",
        "--device-index -dev": "use --device cuda:N",
        "-ng --no-gpu": "use --device cpu",
        "-fa -nfa --flash-attn --no-flash-attn -ac --audio-ctx -oved --ov-e-device": "leave it out: no word "
        "depends on it",
        "-t": "use --threads N",
        "-p --processors --batched": "leave it out: windows are decoded together, --batch-size N of them",
        "--model-dir --model-directory": "use --model FOLDER, or set HF_HUB_CACHE",
        "--model-cache-only": "use --local-files-only",
        "--hf-token": "set HF_TOKEN in the environment: who lists processes can read a command line",
        "--vad-method --vad-alt-method --vad-model -vm": "leave it out: pauses are found by silero-vad",
        "--vad-onset --vad-offset --vad-threshold -vt --vad-min-speech-duration-ms -vspd "
        "--vad-max-speech-duration-s -vmsd --vad-min-silence-duration-ms -vsd --vad-speech-pad-ms -vp "
        "--vad-samples-overlap -vo --vad-parameters --chunk-size --chunk-length "
        "--hallucination-silence-threshold": PAUSES,
        "--align-model --interpolate-method --no-align --return-char-alignments --timestamp-sanitize "
        "-wt --word-thold -dtw --dtw": ALIGNMENT,
        "--diarize-model": "use --diarizer ENGINE",
        "-di -tdrz --tinydiarize": "use --diarize",
        "-ot --offset-t -on --offset-n -d --duration --clip-timestamps": CLIP,
        "--ff-mdx-kim2 --ff-vocal-extract --ff-loudnorm --ff-speechnorm --ff-tempo --ff-lowhighpass": SOUND,
        **{f"--output-{name} -o{name}": f"use -f {name}" for name in ("txt", "srt", "vtt")},
        "--output-json -oj --output-json-full -ojf": "use -f json",
        "--output-csv -ocsv": "use -f tsv",
        "--output-lrc -olrc --output-words -owts --font-path -fp": "use -f vtt with "
        "--word-timestamps --highlight-words",
        "--output-file -of": "use -o DIR",
        "-ml --max-len": "use --max-line-width N",
        "--standard --standard-asia --sentence --max-comma --max-gap --segment-resolution": LINES,
        "--one-word": "use --max-words-per-line 1",
        "-sow --split-on-word": "leave it out: lines are broken between words",
        "-nt --without-timestamps": "use --no-timestamps",
        "-np --no-prints -ps --print-special -pc --print-colors -pp --print-progress -debug --debug-mode "
        "-ls --log-score --log-level": PRINTED,
        "--skip": "leave it out: what is up to date is skipped",
        "--batch-recursive -br": "use --recursive",
        "--live-transcribe": "use forescribe listen",
        "--file": "write the recording alone",
    }.items()
    for name in names.split()
}
"""The most typed, with what to use. The parser refuses all others and names similar options."""

Command = TypeVar("Command", bound=Callable[..., None])


REQUIRED: Any = MISSING
"""The default of an option that has to be given."""


@dataclass(frozen=True)
class Declaration:
    """How an option, or an argument without a section, is written and explained."""

    section: str | None
    names: str  # `--model -m MODEL`: spellings, then the word for the value; see `opt`
    help: str
    shown: str | None  # the default in words, where the value says nothing
    bounds: Mapping[str, float]

    def parameter(self, field: str, *, switch: bool) -> Any:
        """The declaration of a field as typer takes it in an annotation."""
        if self.section is None:
            return typer.Argument(metavar=self.names, help=self.help)
        words, name = self.names.split(), field.replace("_", "-")
        names = [word for word in words if word.startswith("-")]
        if not any(name.startswith("--") for name in names):
            names.insert(0, f"--{name}/--no-{name}" if switch else f"--{name}")
        return typer.Option(
            *names,
            metavar=words[-1] if words and not words[-1].startswith("-") else None,
            help=self.help if self.shown is None else f"{self.help}  [default: {self.shown}]",
            rich_help_panel=self.section,
            show_default=self.shown is None,
            **self.bounds,  # type: ignore[arg-type]  # min and max
        )


def arg(metavar: str, help: str, default: Any = REQUIRED) -> Any:
    """Declare a field that is a positional argument."""
    declared = Declaration(None, metavar, help, None, {})
    return field(default=default, kw_only=False, metadata={"cli": declared})


def opt(
    section: str,
    names: str,
    help: str,
    default: Any = None,
    *,
    shown: str | None = None,
    **bounds: float,
) -> Any:
    """Declare a field that is an option under the heading `section`; `bounds` are `min` and `max`.

    `names` are spellings, and the word for its value: `--model --whisper-model -m MODEL`. Without one of two
    dashes the field's own is the first: `-r` of a bool `recursive` is `--recursive/--no-recursive -r`.
    """
    declared = Declaration(section, names, help, shown, bounds)
    return field(default=default, metadata={"cli": declared})


def like(record: type, name: str, help: str | None = None, **changes: Any) -> Any:
    """Declare the option `name` of `record` again, with other words of help and `changes`: `default`, and
    fields of `Declaration`."""
    (original,) = (f for f in fields(record) if f.name == name)
    default = changes.pop("default", original.default)
    changes |= {} if help is None else {"help": help}
    declared = replace(original.metadata["cli"], **changes)
    return field(default=default, metadata={"cli": declared})


def takes(record: type) -> Callable[[Command], Command]:
    """Give a function of keyword arguments the fields of `record` as its signature, as typer reads
    it."""

    def declare(command: Command) -> Command:
        hints = get_type_hints(record)
        parameters = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=Annotated[
                    hints[field.name],
                    field.metadata["cli"].parameter(
                        field.name, switch=hints[field.name] in (bool, bool | None)
                    ),
                ],
            )
            for field in fields(record)
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return declare


class SectionedCommand(TyperCommand):
    """A command whose help groups the options under the headings of `SECTIONS`, and that
    answers flags which it does not have any more.

    Plain text: typer groups options too, but only in its boxes drawn by rich.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse flags that are gone or of other programs, see `checked`. Raises UsageError."""
        if ctx.resilient_parsing:  # a shell completes what is half typed
            return super().parse_args(ctx, args)
        valued: set[str] = set()
        switches: dict[str, str | None] = {}
        for option in self.get_params(ctx):
            if option.param_type_name == "argument":
                continue
            if not getattr(option, "is_flag", False):
                valued.update(option.opts)
                continue
            off = next(iter(option.secondary_opts), None)
            switches |= dict.fromkeys((name for name in option.opts if len(name) > 2), off)
            switches |= dict.fromkeys(option.secondary_opts, option.opts[0])
        return super().parse_args(ctx, checked(args, valued, switches))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS] AUDIO...`: arguments by their metavar."""
        arguments = [p for p in self.params if p.param_type_name == "argument"]
        return ["[OPTIONS]", *(_metavar(p) for p in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options by section."""
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], **{s: [] for s in SECTIONS}}
        parameters: list[Any] = list(self.get_params(ctx))
        for parameter in parameters:
            if parameter.param_type_name == "argument":
                rows["Arguments"].append((_metavar(parameter), parameter.help or ""))
                continue
            if getattr(parameter, "is_flag", False) and not parameter.default:
                parameter.show_default = False  # a switch that is off by default needs no words
            row = parameter.get_help_record(ctx)
            if row is not None:
                section = getattr(parameter, "rich_help_panel", None) or "Other"
                # Other programs' names for an option stand in the reference alone.
                names = re.sub(r"(--[\w-]+)(?:, --[\w-]+)+", r"\1", row[0])
                names = re.sub(r"--([\w-]+) / --no-\1\b", r"--[no-]\1", names)
                rows.setdefault(section, []).append((names, row[1]))
        for section, lines in rows.items():
            if lines:
                with formatter.section(section):
                    formatter.write_dl(lines)


def checked(typed: list[str], valued: set[str], switches: Mapping[str, str | None]) -> list[str]:
    """The arguments with switches that are followed by True or False, as in openai/whisper, written bare. An
    option of the command is in `valued` if it takes a value, else in `switches` with the name that turns it
    off. Raises UsageError for flags that are gone or foreign."""
    left, found = typed[::-1], list[str]()  # reversed: a flag takes its value from the end
    while left:
        token = left.pop()
        if token == "--":
            return [*found, token, *left[::-1]]
        flag, equals, value = token.partition("=")
        name = flag.replace("_", "-")
        gone = GONE.get(name, GONE.get(f"--{name[5:]}" if name.startswith("--no-") else name))
        if name in switches:
            if not equals and left and left[-1].lower() in ("true", "false"):
                equals, value = "=", left.pop()
            found.append(_switched(flag, value, name, switches[name]) if equals else name)
        elif name in valued:
            found.append(token)
            if not equals and left:
                found.append(left.pop())  # whatever it looks like
        elif name.startswith("-") and gone:
            raise UsageError(f"{flag} is gone: {gone}")
        elif name in FOREIGN:
            one = ONE_LETTER if re.fullmatch(r"-\w{2,}", name) else ""
            raise UsageError(f"{flag} is not supported: {one}{FOREIGN[name]}")
        else:
            found.append(token)
    return found


def _switched(flag: str, value: str, name: str, off: str | None) -> str:
    if value.lower() == "true":
        return name
    if value.lower() != "false" or off is None:
        raise UsageError(f"{flag} is {'True or False' if off else 'a flag'}, not {value!r}")
    return off


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())
