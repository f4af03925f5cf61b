"""The folder of a Whisper block head: config.json with its sizes, model.safetensors with its tensors.

Knows files; nothing of how a head computes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import LoadError
from .whisper_block import BlockShape, WhisperBlock

MODEL_TYPE = "forescribe_whisper_block"
"""The `model_type` of config.json, which no class of transformers has."""

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def is_block(folder: Path) -> bool:
    """Whether a folder says that it holds a block head."""
    try:
        found: Any = json.loads((folder / CONFIG).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("model_type") == MODEL_TYPE


def read_block(folder: Path) -> WhisperBlock:
    """The head in a folder, in float32. Raises LoadError for a folder without one, or a damaged one."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config: Any = json.loads((folder / CONFIG).read_text("utf-8"))
        tensors = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise LoadError(f"{folder} holds no readable block head: {error}") from error
    if not isinstance(config, dict) or config.get("model_type") != MODEL_TYPE:
        raise LoadError(f"{folder} holds no block head: its config.json does not say {MODEL_TYPE}")
    shape = _shape(config)
    return WhisperBlock(shape, {name: tensor.float() for name, tensor in tensors.items()})


def write_block(folder: Path, head: WhisperBlock) -> None:
    """Writes a head as float16, file by file in one move each."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    stored: dict[str, Tensor] = {
        name: tensor.detach().to(torch.float16).contiguous()
        for name, tensor in head.tensors.items()
    }
    partial = folder / f"{WEIGHTS}.tmp"
    save_file(stored, partial)
    partial.replace(folder / WEIGHTS)
    config = {"model_type": MODEL_TYPE, **asdict(head.shape)}
    partial = folder / f"{CONFIG}.tmp"
    partial.write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    partial.replace(folder / CONFIG)


def _shape(config: dict[str, Any]) -> BlockShape:
    names = [field.name for field in fields(BlockShape)]
    missing = [name for name in names if name not in config]
    if missing:
        raise LoadError(f"the block head's config.json lacks {missing[0]}")
    values = {name: config[name] for name in names}
    taps = values.pop("taps")
    numbers = [*values.values(), *(taps if isinstance(taps, list) else [taps])]
    if not all(type(number) is int for number in numbers):
        raise LoadError("the block head's config.json has sizes that are no whole numbers")
    return BlockShape(**values, taps=tuple(taps))
