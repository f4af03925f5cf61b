"""Commands whose options arrive as one frozen record, with help grouped by section.

    @dataclass(frozen=True, kw_only=True)
    class GreetOptions:
        name: str = arg("NAME", "Who to greet.")
        times: int = opt(DECODING, "--times -n N", "How often.", 1, min=1)
        loud: bool = opt(OUTPUT, "--loud", "Use capital letters.", False)

    @app.command(cls=SectionedCommand)
    @takes(GreetOptions)
    def greet(**values: Any) -> None:
        options = GreetOptions(**values)

An option is declared once, in a record that several commands inherit; `like` takes a single option from
such a record, with other words or another default. A record checks its values in `__post_init__`, so that
a command never sees a combination that is impossible. Knows nothing of individual commands.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

from . import foreign_flags

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

Command = TypeVar("Command", bound=Callable[..., None])


REQUIRED: Any = MISSING
"""The default of an option that has to be given."""


@dataclass(frozen=True)
class Declaration:
    """How an option, or an argument without a section, is written and explained."""

    section: str | None
    names: str  # `--model -m MODEL`: spellings, then the word for the value
    help: str
    shown: str | None  # the default in words, where the value says nothing
    bounds: Mapping[str, float]

    @property
    def parameter(self) -> Any:
        """The declaration as typer takes it in an annotation."""
        if self.section is None:
            return typer.Argument(metavar=self.names, help=self.help)
        words = self.names.split()
        names = [word for word in words if word.startswith("-")]
        return typer.Option(
            *names,
            metavar=None if len(names) == len(words) else words[-1],
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
    """Declare a field that is an option under the heading `section`; `bounds` are `min` and `max`."""
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
                annotation=Annotated[hints[field.name], field.metadata["cli"].parameter],
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
        """Refuse flags that are gone or of other programs, see `foreign_flags`. Raises UsageError."""
        valued: set[str] = set()
        switches: dict[str, str | None] = {}
        for option in (p for p in self.get_params(ctx) if p.param_type_name == "option"):
            if not getattr(option, "is_flag", False):
                valued.update(option.opts)
                continue
            off = next(iter(option.secondary_opts), None)
            switches |= dict.fromkeys((name for name in option.opts if len(name) > 2), off)
            switches |= dict.fromkeys(option.secondary_opts, option.opts[0])
        return super().parse_args(ctx, foreign_flags.checked(args, valued, switches))

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


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())
