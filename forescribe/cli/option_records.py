"""Commands whose options arrive as one frozen record, with help grouped by section.

    @dataclass(frozen=True)
    class GreetOptions:
        name: Annotated[str, argument("NAME", help="Who to greet.")]
        loud: Annotated[bool, option(OUTPUT, "--loud", help="Use capital letters.")] = False

    @app.command(cls=SectionedCommand)
    @takes(GreetOptions)
    def greet(**values: Any) -> None:
        options = GreetOptions(**values)

The record checks its values in `__post_init__`, so a command never sees a combination that is
impossible. Knows nothing of individual commands.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

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


def argument(metavar: str, *, help: str) -> Any:
    """Declare a positional argument."""
    return typer.Argument(metavar=metavar, help=help)


def option(section: str, *names: str, help: str, **more: Any) -> Any:
    """Declare an option under the heading `section`; `more` is passed on to `typer.Option`."""
    return typer.Option(*names, help=help, rich_help_panel=section, **more)


def takes(record: type) -> Callable[[Command], Command]:
    """Give a function of keyword arguments the fields of `record` as its signature, as typer reads
    it."""

    def declare(command: Command) -> Command:
        hints = get_type_hints(record, include_extras=True)
        parameters = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=hints[field.name],
            )
            for field in fields(record)
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = hints
        return command

    return declare


class SectionedCommand(TyperCommand):
    """A command whose help groups the options under the headings of `SECTIONS`.

    Plain text: typer groups options too, but only in its boxes drawn by rich.
    """

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
                rows.setdefault(section, []).append(row)
        for section, lines in rows.items():
            if lines:
                with formatter.section(section):
                    formatter.write_dl(lines)


class ForeignFlagsCommand(SectionedCommand):
    """A command that also accepts the flags of other programs, see `foreign_flags`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Translate the command line before it is parsed. Raises UsageError."""
        options = [p for p in self.get_params(ctx) if p.param_type_name == "option"]
        switches: dict[str, str | None] = {}
        for switch in (o for o in options if getattr(o, "is_flag", False)):
            off = next(iter(switch.secondary_opts), None)
            switches |= dict.fromkeys((name for name in switch.opts if len(name) > 2), off)
            switches |= dict.fromkeys(switch.secondary_opts, switch.opts[0])
        named = [o for o in options if not getattr(o, "is_flag", False)]
        valued = frozenset(name for option in named for name in option.opts)
        known = foreign_flags.KnownOptions(valued, switches)
        return super().parse_args(ctx, foreign_flags.translate(args, known))


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())
