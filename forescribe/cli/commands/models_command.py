"""`forescribe models`: the presets, the models on this machine, and what a name would download.

Knows how lists are printed; presets are in `asr.model.presets`, the caches in `asr.model.conversion`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ..options.option_records import DIAGNOSTICS, option


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="A name as for --model: what it loads, where that is, and what it would download.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, option(DIAGNOSTICS, "--json", help="Print one JSON object.")] = False,
) -> None:
    """List the model presets, and the Whisper models on this machine.

    The columns of the presets are the name, its state (ready, target only, or - if it is not downloaded), the
    target and its drafts. Those of the models are what --model takes, the program in whose cache it is, the
    size on disk, the memory of the weights in float32 (half of it in 16 bits; activations and caches come on
    top) and the licence, where it is known. With NAME: what that would load. Nothing is downloaded."""
    if name is not None:
        _print(_loaded_by(name), _one_model, as_json=as_json)
        return
    _print(_all_models(), _lists, as_json=as_json)


def _print(content: dict[str, Any], lines: Any, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(content, ensure_ascii=False))
        return
    for line in lines(content):
        typer.echo(line)


def _all_models() -> dict[str, Any]:
    from forescribe.asr.model.conversion.caches import machine
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
            }
        )
    return {"presets": presets, "machine": [model.to_dict() for model in machine()]}


def _lists(content: dict[str, Any]) -> Iterator[str]:
    for preset in content["presets"]:
        drafts = ", ".join(preset["drafts"]) or "-"
        yield f"{preset['name']:18} {preset['state'] or '-':12} {preset['target']:38} {drafts}"
        yield f"{'':18} {'':12} {preset['note']}"
    if content["machine"]:
        yield ""
        yield f"{'ON THIS MACHINE':45} {'FROM':21} {'DISK':>9} {'MEMORY':>9}  LICENCE"
    for model in content["machine"]:
        yield (
            f"{model['name']:45} {model['program']:21} {_size(model['size_bytes']):>9} "
            f"{_size(model['memory_bytes']):>9}  {model['licence'] or '-'}"
        )


def _loaded_by(name: str) -> dict[str, Any]:
    from forescribe.asr.model.presets import resolve

    pair = resolve(name, None)
    parts = [("target", pair.target), *(("draft", draft) for draft in pair.drafts)]
    return {"name": name, "loads": [_part(role, str(source)) for role, source in parts]}


def _part(role: str, source: str) -> dict[str, Any]:
    """What is known of a model: where it is, or what would be downloaded."""
    from forescribe.asr.model.conversion.caches import describe
    from forescribe.asr.model.presets import WHISPER
    from forescribe.speculative.models.hub import HubError, find, would_download

    known: dict[str, Any] = {"role": role, "name": source}
    here = Path(source) if Path(source).is_file() else find(source, WHISPER.missing)
    if here is not None:
        return known | {"on_this_machine": True} | describe(source, here).to_dict()
    known["on_this_machine"] = False
    try:
        download = would_download(source, WHISPER)
    except HubError as error:
        return known | {"problem": str(error)}
    size = sum(download.files.values())
    return known | {"download": download.files, "size_bytes": size, "licence": download.licence}


def _one_model(content: dict[str, Any]) -> Iterator[str]:
    for part in content["loads"]:
        head = f"{part['role']:7} {part['name']}"
        if part["on_this_machine"]:
            memory = part["memory_bytes"]
            needs = f", {_size(memory)} of memory in float32" if memory else ""
            yield f"{head}: on this machine, {_size(part['size_bytes'])}{needs}"
            yield f"{'':8}{part['path']}"
        elif "problem" in part:
            yield f"{head}: not on this machine; {part['problem']}"
        else:
            yield f"{head}: would download {_size(part['size_bytes'])}"
            for file, size in part["download"].items():
                yield f"{'':8}{_size(size):>9}  {file}"
        if part.get("licence"):
            yield f"{'':8}licence: {part['licence']}"


def _size(size: int | None) -> str:
    """A number of bytes in decimal units, as hubs give them."""
    if size is None:
        return "-"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.{1 if size < 10 * factor else 0}f} {unit}"
    return f"{size} B"
