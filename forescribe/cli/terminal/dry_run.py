"""The list of `--dry-run`: a line per recording.

Knows what would be written or skipped; transcribes nothing.
"""

from __future__ import annotations

from json import dumps
from typing import TYPE_CHECKING

import typer

from forescribe.asr.errors import visible

from .console import file_names

if TYPE_CHECKING:
    from forescribe.asr.batch.batch import Batch
    from forescribe.asr.records.sources import Source


def list_batch(batch: Batch, *, as_json: bool) -> int:
    """Print what would be written or skipped; returns the exit code, 1 if a recording cannot be
    read."""
    for source in batch.done:
        typer.echo(_line(batch, source, "skipped", as_json=as_json))
    for source in batch.todo:
        status = "failed" if source.error else "pending"
        typer.echo(_line(batch, source, status, as_json=as_json))
    return int(any(source.error is not None for source in batch.todo))


def _line(batch: Batch, source: Source, status: str, *, as_json: bool) -> str:
    files, error = batch.files(source), source.error
    if as_json:
        entry: dict[str, object] = {
            "path": source.path,
            "status": status,
            "outputs": [*map(str, files)],
        }
        if error:
            entry |= {"code": error.code, "message": error.message}
        return dumps(entry)
    if error:
        return f"failed: {error.message}"
    if status == "skipped":
        return visible(f"{source.path}: already done")
    return visible(f"{source.path} -> {file_names(files) if files else 'stdout'}")
