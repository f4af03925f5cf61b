"""The files of a model's folder: what is missing, and which of them is damaged.

The loaders' own messages rarely name the file. Knows file formats; import is light.
"""

from __future__ import annotations

import json
from pathlib import Path

WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def missing(folder: Path) -> str | None:
    """What a folder lacks of a configuration and all files of its weights; None where nothing."""
    if not (folder / "config.json").is_file():
        return "config.json"
    for name in WEIGHTS:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return None
        if index.is_file():
            return _missing_shard(folder, index)
    return "weights"


def _missing_shard(folder: Path, index: Path) -> str | None:
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        lost = [shard for shard in shards if not (folder / shard).is_file()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"readable {index.name}"
    if not lost and shards:
        return None
    return f"{lost[0]}, which {index.name} names" if lost else f"weights: {index.name} names none"


def damaged(folder: Path) -> str | None:
    """The first file that cannot be read for what its name says, with the reason; None where all can."""
    paths = sorted([*folder.glob("*.json"), *folder.glob("*.safetensors")])
    for path in paths:
        if not path.exists():  # as `cp -r` leaves relative links of another place
            return f"{path.name} is a link to {path.readlink()}, which is not there; `cp -rL` copies files"
    for path in (path for path in paths if path.suffix == ".json"):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            return f"{path.name} is damaged: {_line(error)}"
    for path in (path for path in paths if path.suffix == ".safetensors"):
        from safetensors import safe_open

        try:
            with safe_open(path, "pt") as file:
                file.keys()
        except Exception as error:  # safetensors has an error class for every kind of damage
            return f"{path.name} is damaged or not complete: {_line(error)}"
    return None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:150]
