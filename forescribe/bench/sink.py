"""Where a benchmark's result goes: a table for people, and one line of JSON for machines.

Knows files and streams; nothing of what was measured.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import typer

from forescribe.asr.errors import OutputError, UsageError

STDOUT = "-"


@dataclass(frozen=True)
class Sink:
    """`record` is the file for the JSON line, None, or "-" for stdout; the table is then on stderr."""

    record: str | None = None

    def check(self) -> None:
        """Check that the record can be written, before minutes of measuring. Raises UsageError."""
        if self.record in (None, STDOUT):
            return
        path = Path(self.record or "")
        folder = path.parent
        if path.is_dir():
            raise UsageError(f"--json {path} is a folder: name a file in it")
        if not folder.is_dir():
            raise UsageError(f"--json {path}: there is no folder {folder}; make it first")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise UsageError(f"--json {path} cannot be written: name another place")

    def write(self, table: str, record: Mapping[str, object]) -> None:
        """Write the table, then the record, so that the table survives a full disk. Raises
        OutputError."""
        typer.echo(table, err=self.record == STDOUT)
        if self.record is None:
            return
        line = json.dumps(record)
        if self.record == STDOUT:
            typer.echo(line)
            return
        try:
            Path(self.record).write_text(line + "\n", encoding="utf-8")
        except OSError as error:
            raise OutputError(
                f"--json {self.record} was not written: {error.strerror or error}"
            ) from error
