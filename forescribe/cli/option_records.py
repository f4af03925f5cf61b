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

A value whose word ends with `,...` is a list with commas, and an option that is repeated makes it longer.
An option is declared once, in a record that several commands inherit; `like` takes a single option from
such a record, with other words or another default. A record checks its values in `__post_init__`, so that
a command never sees a combination that is impossible.

The most typed flags of openai/whisper, whisperX, faster-whisper and whisper.cpp that have no meaning here are
refused with one line on what to use. Other programs' names for what a command has stand in the declaration of
its option. Knows nothing of individual commands.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import wraps
from itertools import islice
from typing import Annotated, Any, TypeVar, cast, get_type_hints

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
SECTIONS = (SERVICE, INPUT, OUTPUT, MODEL, DECODING, TRAINING, SPEAKERS, PERFORMANCE, DIAGNOSTICS)
"""Headings of `--help`, in this order. Options without a section, such as `--help`, come last."""

FOREIGN: Mapping[str, str] = {
    name: instead
    for names, instead in {
        "--temperature --best-of": "leave it out: the text is the most probable one, or with --beam-size 5 "
        "that of beams; doubtful windows are decoded again at rising temperatures, see --guards",
        "--no-fallback": "use --no-guards",
        "--hotwords": "use --terms FILE, a list of names and terms, one a line",
        "--condition-on-previous-text": "leave it out: windows are read alone; --beam-size 5 writes fewer "
        "wrong words",
        "--translate": "use --task translate",
        "--fp16": "use --dtype float16, or --dtype float32 for False",
        "--compute-type": "use --dtype float16, bfloat16 or float32, or --quantize int8",
        "--hf-token": "set HF_TOKEN in the environment: who lists processes can read a command line",
        "--vad-method --vad-onset --vad-offset --vad-threshold --vad-parameters --chunk-size": "leave it "
        "out: windows are cut in pauses by fixed thresholds; --no-vad decodes silence too",
        "--align-model --no-align": "use --word-timestamps: word times come from the model's own attention",
        "--diarize-model": "use --diarizer ENGINE",
        "--clip-timestamps": "cut the recording before, such as with ffmpeg: all of it is transcribed",
        "--output-txt -otxt": "use -f txt",
        "--output-srt -osrt": "use -f srt",
        "--output-vtt -ovtt": "use -f vtt",
        "--output-json -oj -ojf": "use -f json",
        "--output-csv -ocsv": "use -f tsv",
        "--output-file -of": "use -o DIR",
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
        defaults = {f.name: f.default for f in fields(record) if f.default is not MISSING}
        listed = {f.name for f in fields(record) if f.metadata["cli"].names.endswith(",...")}
        hints |= dict.fromkeys(listed, list[str])
        defaults |= dict.fromkeys(listed)

        @wraps(command)
        def joining(**values: Any) -> None:
            given = {name: v for name, v in values.items() if v or name not in listed}
            command(**{name: ",".join(v) if name in listed else v for name, v in given.items()})

        parameters = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(field.name, inspect.Parameter.empty),
                annotation=Annotated[
                    hints[field.name],
                    field.metadata["cli"].parameter(
                        field.name, switch=hints[field.name] in (bool, bool | None)
                    ),
                ],
            )
            for field in fields(record)
        ]
        joining.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        joining.__annotations__ = {p.name: p.annotation for p in parameters}
        return cast(Command, joining)

    return declare


class SectionedCommand(TyperCommand):
    """A command whose help groups the options under the headings of `SECTIONS`, and that answers flags of
    other programs.

    Plain text: typer groups options too, but only in its boxes drawn by rich.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse flags of other programs, see `checked`. Raises UsageError."""
        if ctx.resilient_parsing:  # a shell completes what is half typed
            return super().parse_args(ctx, args)
        valued = set[str]()
        switches = dict[str, str | None]()
        for option in self.get_params(ctx):
            if getattr(option, "is_flag", False):
                off = next(iter(option.secondary_opts), None)
                switches |= dict.fromkeys((name for name in option.opts if len(name) > 2), off)
                switches |= dict.fromkeys(option.secondary_opts, option.opts[0])
            elif option.param_type_name == "option":
                valued.update(option.opts)
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
                names = re.sub(r"(--[\w-]+)(?:, --[\w-]+)+", r"\1", row[0])
                names = re.sub(r"--([\w-]+) / --no-\1\b", r"--[no-]\1", names)
                also = ", ".join([name for name in parameter.opts if len(name) > 2][1:])
                help = f"{row[1]}  [also {also}]" if also else row[1]
                rows.setdefault(section, []).append((names, help))
        for section, lines in rows.items():
            if lines:
                with formatter.section(section):
                    formatter.write_dl(lines)


def checked(
    typed: list[str], valued: Container[str], switches: Mapping[str, str | None]
) -> list[str]:
    """The arguments with switches that are followed by True or False, as in openai/whisper, written bare. An
    option of the command is in `valued` if it takes a value, else in `switches` with the name that turns it
    off. Raises UsageError for foreign flags."""
    found, rest = list[str](), iter(typed)
    for token in rest:
        flag, equals, value = token.partition("=")
        name = flag.replace("_", "-")
        if token == "--":
            return [*found, token, *rest]
        if name in valued:  # the next one is its value, whatever that looks like
            found += [token, *islice(rest, 0 if equals else 1)]
        elif name in switches:
            found.append(_switched(flag, value, name, switches[name]) if equals else name)
        elif name in FOREIGN:
            raise UsageError(f"{flag} is not supported: {FOREIGN[name]}")
        elif found and found[-1] in switches and token.lower() in ("true", "false"):
            on = found.pop()
            found.append(_switched(on, token, on, switches[on]))
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
