"""`forescribe models`: the presets, what of them is on this machine, and what a name would load.

Knows how lists are printed; presets are in `asr.model.presets`. torch is not loaded.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from .option_records import arg, takes
from .options import JsonOptions

WIDTH = 80


@dataclass(frozen=True, kw_only=True)
class ModelsOptions(JsonOptions):
    """The parsed command line."""

    name: str | None = arg(
        "[NAME]",
        "A name as for --model: what it loads, where that is, and what it would download.",
        None,
    )


@takes(ModelsOptions)
def models(**values: Any) -> None:
    """List the model presets.

    Of each: its size with its drafts on this machine (- where it is not downloaded), and its licence. With
    NAME: what that would load, where it is, and what it would download. Nothing is downloaded."""
    options = ModelsOptions(**values)
    content = _all_models() if options.name is None else _loaded_by(options.name)
    if options.json:
        typer.echo(json.dumps(content, ensure_ascii=False))
        return
    for line in _lists(content) if options.name is None else _one_model(content):
        typer.echo(line)


def _all_models() -> dict[str, Any]:
    from forescribe.asr.model.presets import cached

    presets = []
    for entry in cached():
        preset = entry.preset
        state = "target only" if entry.draft is False else "ready"
        presets.append(
            {
                "name": preset.name,
                "state": state if entry.target else None,
                "target": preset.target,
                "drafts": [draft.name for draft in preset.drafts],
                "note": preset.note,
                "licence": preset.licence,
                "size_bytes": sum(map(_bytes, entry.folders)) if entry.target else None,
            }
        )
    return {"presets": presets, "others": _others()}


def _others() -> list[dict[str, Any]]:
    """Speech models in the hub's cache that no preset names."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    from forescribe.asr.model.presets import PRESETS, SPEECH_LLMS, lacks, model_type
    from forescribe.speculative.models.hub import find

    named = {name for p in PRESETS.values() for name in (p.target, *(d.name for d in p.drafts))}
    try:
        repositories = sorted(repo.repo_id for repo in scan_cache_dir().repos)
    except CacheNotFound:
        return []
    others = []
    for name in repositories:
        folder = None if name in named else find(name, lacks)
        if folder is not None and model_type(folder) in ("whisper", *SPEECH_LLMS):
            others.append({"name": name, "size_bytes": _bytes(folder)})
    return others


def _lists(content: dict[str, Any]) -> Iterator[str]:
    yield _row("model", "on disk", "licence")
    for model in (*content["presets"], *content["others"]):
        size = model["size_bytes"]
        shown = "-" if size is None else _size(size)
        yield _row(model["name"], shown, model.get("licence", "see its card"))
        note = model.get("note", "in the cache; no preset")
        if model.get("state") == "target only":
            note += "; its draft is not here"
        yield from textwrap.wrap(note, WIDTH, initial_indent="  ", subsequent_indent="  ")
    yield ""
    yield "on disk: with its drafts; - is downloaded when it is first used"
    if _offline():
        here = [m["name"] for m in (*content["presets"], *content["others"]) if m["size_bytes"]]
        yield f"offline (HF_HUB_OFFLINE): usable are {', '.join(here)}"


def _row(*cells: str) -> str:
    return "{:18} {:>8}  {}".format(*cells)


def _offline() -> bool:
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE


def _loaded_by(name: str) -> dict[str, Any]:
    from forescribe.asr.model.presets import resolve

    pair = resolve(name, None)
    parts = [("target", pair.target), *(("draft", draft) for draft in pair.drafts)]
    return {"name": name, "loads": [_part(role, source) for role, source in parts]}


def _part(role: str, source: str | Path) -> dict[str, Any]:
    """What is known of a model: where it is, or what would be downloaded."""
    from forescribe.asr.model.presets import WHISPER
    from forescribe.speculative.models.hub import HubError, find, would_download

    known: dict[str, Any] = {"role": role, "name": str(source)}
    here = Path(source) if Path(source).is_file() else find(source, WHISPER.missing)
    if here is not None:
        return known | {"on_this_machine": True, "path": str(here), "size_bytes": _bytes(here)}
    known["on_this_machine"] = False
    try:
        download = would_download(str(source), WHISPER)
    except HubError as error:
        return known | {"problem": str(error)}
    size = sum(download.files.values())
    return known | {"download": download.files, "size_bytes": size, "licence": download.licence}


def _one_model(content: dict[str, Any]) -> Iterator[str]:
    from forescribe.asr.model.presets import here

    for part in content["loads"]:
        head = f"{part['role']:7} {part['name']}"
        if part["on_this_machine"]:
            yield f"{head}: on this machine, {_size(part['size_bytes'])}"
            yield f"{'':8}{part['path']}"
        elif "problem" in part:
            yield f"{head}: not on this machine"
            yield f"{'':8}{part['problem']}"
        else:
            yield f"{head}: would download {_size(part['size_bytes'])}"
            for file, size in part["download"].items():
                yield f"{'':8}{_size(size):>9}  {file}"
        if part.get("licence"):
            yield f"{'':8}licence: {part['licence']}"
    if any("problem" in part for part in content["loads"]):
        yield f"on this machine: {', '.join(here())}"


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
