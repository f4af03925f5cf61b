"""The comparisons with other programs in this process, as a user types them."""

from __future__ import annotations

from typing import Any

import typer
from typer.testing import CliRunner

from benchmarks import draft_options, options
from forescribe.cli.main import CONTEXT
from forescribe.cli.option_records import SectionedCommand

COMMANDS = {
    "transcribe": options.transcribe,
    "text": options.text,
    "drafts": draft_options.drafts,
}


def app(name: str) -> typer.Typer:
    made = typer.Typer(context_settings=CONTEXT, rich_markup_mode=None)
    made.command(cls=SectionedCommand)(COMMANDS[name])
    return made


def bench(name: str, *arguments: str) -> Any:
    """What it wrote and its status; raises what the program would turn into one line."""
    result = CliRunner().invoke(app(name), arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
