"""`forescribe models`: the presets, and what of them is on this machine.

Knows how the list is printed; presets are in `asr.model.presets`. torch is not loaded.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from rich.filesize import decimal

from .option_records import takes
from .options import JsonOptions


@takes(JsonOptions)
def models(**values: Any) -> None:
    """List the model presets.

    Of each: its size with its drafts on this machine (- where it is not downloaded), and its licence.
    Nothing is downloaded."""
    presets = list(_presets())
    if JsonOptions(**values).json:
        typer.echo(json.dumps({"presets": presets}, ensure_ascii=False))
        return
    for line in _lines(presets):
        typer.echo(line)


def _presets() -> Iterator[dict[str, Any]]:
    from forescribe.asr.model.presets import cached

    for entry in cached():
        preset = entry.preset
        state = "target only" if entry.draft is False else "ready"
        yield {
            "name": preset.name,
            "state": state if entry.target else None,
            "target": preset.target,
            "drafts": [draft.name for draft in preset.drafts],
            "note": preset.note,
            "licence": preset.licence,
            "size_bytes": sum(map(_bytes, entry.folders)) if entry.target else None,
        }


def _lines(presets: list[dict[str, Any]]) -> Iterator[str]:
    row = "{:18} {:>8}  {}".format
    yield row("model", "on disk", "licence")
    for preset in presets:
        size = preset["size_bytes"]
        yield row(preset["name"], "-" if size is None else decimal(size), preset["licence"])
        note = preset["note"]
        if preset["state"] == "target only":
            note += "; its draft is not here"
        yield from textwrap.wrap(note, 80, initial_indent="  ", subsequent_indent="  ")
    yield ""
    yield "on disk: with its drafts; - is downloaded when it is first used"


def _bytes(place: Path) -> int:
    """The size of a file, or of all files in a folder."""
    return sum(path.stat().st_size for path in (place, *place.rglob("*")) if path.is_file())
