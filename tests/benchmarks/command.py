"""The comparisons with other programs in this process, as a user types them."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from benchmarks import drafts, options, text, transcribe

COMMANDS = {"transcribe": transcribe.transcribe, "text": text.text, "drafts": drafts.drafts}


def bench(name: str, *arguments: str) -> Any:
    """What it wrote and its status; raises what the program would turn into one line."""
    result = CliRunner().invoke(options.app(COMMANDS[name]), arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
