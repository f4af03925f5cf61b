"""`forescribe bench` in this process, as a user types it."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from forescribe.cli.main import app


def bench(*arguments: str) -> Any:
    """What it wrote and its status; raises what the console entry would turn into one line."""
    result = CliRunner().invoke(app, ["bench", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
