"""`forescribe models`: the presets, and what of them is on this machine.

Knows how the list is printed; presets are in `asr.model.presets`. torch is not loaded.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from .option_records import takes
from .options import JsonOptions

WIDTH = 80


@dataclass(frozen=True, kw_only=True)
class ModelsOptions(JsonOptions):
    """The parsed command line."""


@takes(ModelsOptions)
def models(**values: Any) -> None:
    """List the model presets.

    Of each: its size with its drafts on this machine (- where it is not downloaded), and its licence.
    Nothing is downloaded."""
    options = ModelsOptions(**values)
    presets = list(_presets())
    if options.json:
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
    from huggingface_hub import constants

    row = "{:18} {:>8}  {}".format
    yield row("model", "on disk", "licence")
    for preset in presets:
        size = preset["size_bytes"]
        yield row(preset["name"], "-" if size is None else _size(size), preset["licence"])
        note = preset["note"]
        if preset["state"] == "target only":
            note += "; its draft is not here"
        yield from textwrap.wrap(note, WIDTH, initial_indent="  ", subsequent_indent="  ")
    yield ""
    yield "on disk: with its drafts; - is downloaded when it is first used"
    if constants.HF_HUB_OFFLINE:
        here = [preset["name"] for preset in presets if preset["size_bytes"]]
        yield f"offline (HF_HUB_OFFLINE): usable are {', '.join(here)}"


def _bytes(place: Path) -> int:
    """The size of a file, or of all files in a folder."""
    files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files)


def _size(size: int) -> str:
    """A number of bytes in decimal units, as hubs give them."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.{1 if size < 10 * factor else 0}f} {unit}"
    return f"{size} B"
