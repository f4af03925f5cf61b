"""What a folder holds: an EAGLE-3 head, a DFlash head, or something else; and loads it.

Knows the formats; nothing of names on the hub or of text models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import LoadError
from ..checkpoint_files import integer_weights
from ..quantized.stored_int8 import floats
from .dflash_format import dflash_head, is_dflash
from .eagle3_format import eagle3_head, is_eagle3
from .head_files import read_config, read_tensors, tensor_names
from .head_record import BlockHead, ChainHead, Head, TargetShape
from .mtp_format import mtp_head, mtp_prefix

Build = Callable[[Mapping[str, Any], Mapping[str, Tensor], TargetShape, str], Head]


class HeadFormat(StrEnum):
    """The published formats of heads in folders of their own."""

    EAGLE3 = "EAGLE-3"
    DFLASH = "DFlash"


BUILD: Mapping[HeadFormat, Build] = {
    HeadFormat.EAGLE3: eagle3_head,
    HeadFormat.DFLASH: dflash_head,
}

LEAN = ("llama", "qwen3")
"""Families of targets whose MTP layer has a lean form."""

OTHERS = {
    "medusa": "Medusa heads",
    "eagle": "EAGLE-1 and EAGLE-2 heads",
    "mlp_speculator": "MLP speculators",
}
"""Heads that are recognised and refused, by `model_type` or `speculators_model_type`."""


def format_of(config: Mapping[str, Any]) -> HeadFormat | None:
    """The format of a folder with this configuration; None for an ordinary model. Raises LoadError for heads
    of other kinds."""
    if is_dflash(config):
        return HeadFormat.DFLASH
    if is_eagle3(config):
        return HeadFormat.EAGLE3
    kind = config.get("speculators_model_type", config.get("model_type"))
    if isinstance(kind, str) and kind in OTHERS:
        raise LoadError(f"{OTHERS[kind]} are not supported; EAGLE-3, MTP and DFlash are")
    if "speculators_model_type" in config:
        raise LoadError(f"speculators of type {kind!r} are not supported; EAGLE-3 and DFlash are")
    return None


def format_in(folder: Path) -> HeadFormat | None:
    """The same of a folder. Raises LoadError for a configuration that cannot be read."""
    return format_of(read_config(folder))


def load_head(
    folder: Path, target: TargetShape, name: str, *, device: torch.device, dtype: torch.dtype
) -> Head:
    """The head in a folder, on a device. Raises LoadError, with what does not fit, by name."""
    config = read_config(folder)
    found = format_of(config)
    if found is None:
        raise LoadError(f"{name} is no head, but an ordinary model")
    tensors = {
        key: value.to(device, dtype if value.is_floating_point() else None)
        for key, value in read_tensors(folder).items()
    }
    with torch.device(device):
        return BUILD[found](config, tensors, target, name)


def load_mtp(folder: Path, target: Any, shape: TargetShape) -> ChainHead:
    """The MTP layer in the checkpoint of a target, a causal LM of transformers that was loaded from `folder`:
    lean where the target is Llama-like, else of the target's own class. Raises LoadError."""
    config, prefix = read_config(folder), mtp_prefix(shape)
    if config.get("model_type") not in LEAN:
        from .mtp_modules import mtp_module_head

        if integer_weights(folder)[0]:  # transformers reads the file again
            raise LoadError(f"{shape.name}: an MTP layer of this family is not read in 8 bits")
        return mtp_module_head(target, tensor_names(folder), shape.name)
    stored = read_tensors(folder, prefix)
    try:
        stored = floats(stored)
    except ValueError as error:
        raise LoadError(f"{shape.name}: {error}") from error
    tensors = {n: t.to(target.device, target.dtype) for n, t in stored.items()}
    with torch.device(target.device):
        return mtp_head(config, tensors, shape, shape.name)


def described(head: Head) -> str:
    """One line about a head, for people."""
    taps = ", ".join("the last" if i < 0 else str(i) for i in head.taps.layers)
    layers = len(head.body.shapes)
    line = f"{head.family} head of {layers} layer{'s' * (layers != 1)}, reading states {taps}"
    if isinstance(head, ChainHead) and head.output.ids is not None:
        return f"{line}; proposes {len(head.output.ids):,} tokens"
    return f"{line}; blocks of {head.block}" if isinstance(head, BlockHead) else line
