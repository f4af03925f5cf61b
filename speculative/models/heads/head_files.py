"""The files of a head's folder: its configuration and its tensors, read without trusting them.

A folder may come from anywhere: nothing in it is executed, and a file that is damaged, too large or names
other folders is refused with its name. Knows file formats; nothing of heads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor

from ...errors import LoadError, load_cause

CONFIG = "config.json"
SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"
LARGEST_JSON = 64 << 20
"""Bytes; the index of a large model's files has a few megabytes."""


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a folder. Raises LoadError with the file's name."""
    return _json(folder / CONFIG)


def read_tensors(folder: Path, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a folder whose names begin with `prefix`, on the CPU; safetensors where there are both
    forms.

    A `.bin` file is unpickled with `weights_only=True`, which builds tensors and nothing else. Raises
    LoadError for files that are missing, damaged or hold anything but finite tensors.
    """
    for name, read in ((SAFETENSORS, _safetensors), (PICKLE, _pickled)):
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return _finite(folder, read(folder / name, prefix))
        if index.is_file():
            tensors: dict[str, Tensor] = {}
            for shard in _shards(index, prefix):
                tensors |= read(folder / shard, prefix)
            return _finite(folder, tensors)
    raise LoadError(f"{folder} holds neither {SAFETENSORS} nor {PICKLE}")


def tensor_names(folder: Path) -> set[str]:
    """The names of all tensors in the safetensors files of a folder, without reading them."""
    index = folder / f"{SAFETENSORS}.index.json"
    if not (folder / SAFETENSORS).is_file():
        return set(_weight_map(index)) if index.is_file() else set()
    from safetensors import safe_open

    try:
        with safe_open(folder / SAFETENSORS, "pt") as file:
            return set(file.keys())
    except Exception as error:  # safetensors has an error class for every kind of damage
        raise LoadError(f"{folder / SAFETENSORS} is damaged: {_line(error)}") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise LoadError(f"{path} is larger than {LARGEST_JSON >> 20} MiB")
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, LoadError):
            raise
        raise LoadError(f"{path} cannot be read: {_line(error)}") from error
    if not isinstance(found, dict):
        raise LoadError(f"{path} is no JSON object")
    return found


def _weight_map(index: Path) -> Mapping[str, str]:
    found = _json(index).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise LoadError(f"{index} names no tensors")
    return found


def _shards(index: Path, prefix: str) -> list[str]:
    """The files of an index with such tensors; all are in its own folder."""
    named = _weight_map(index).items()
    names = sorted({str(file) for tensor, file in named if tensor.startswith(prefix)})
    for name in names:
        if PurePath(name).name != name or "\\" in name:
            raise LoadError(f"{index} names {name!r}, which is not in its folder")
    return names


def _safetensors(path: Path, prefix: str) -> dict[str, Tensor]:
    from safetensors import safe_open

    try:
        with safe_open(path, "pt") as file:
            return {n: file.get_tensor(n) for n in file.keys() if n.startswith(prefix)}
    except Exception as error:  # safetensors has an error class for every kind of damage
        raise LoadError(f"{path} is damaged or not complete: {_line(error)}") from error


def _pickled(path: Path, prefix: str) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and torch raise errors of many classes
        raise LoadError(
            f"{path} holds something other than tensors, or is damaged: {load_cause(error)}"
        ) from error
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in found.items()
    ):
        raise LoadError(f"{path} holds something other than tensors by name")
    return {name: value for name, value in found.items() if name.startswith(prefix)}


def _finite(folder: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    for name, value in tensors.items():
        if value.is_sparse or value.is_quantized or value.layout != torch.strided:
            raise LoadError(f"{folder}: {name} is no plain tensor")
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise LoadError(f"{folder}: {name} has numbers that are not finite")
    return tensors


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
