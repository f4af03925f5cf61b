"""Weights that are stored as 8-bit integers with a scale for each row, read as floats.

    <name>        int8  [N, ...]
    <name>_scale  float [N]        w[n] = scale[n] q[n]      scale[n] = max |w[n]| / 127

The bundled speech models are stored this way: half of float16's bytes. Decoding uses the floats, in the
number format of the device; `--quantize int8` rounds a projection to the same integers again.

The folder of a draft may also leave out the embeddings, which are its target's.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoint_files import CONFIG, SCALE, integer_weights, weight_files
from .int8_product import rounded

__all__ = ["BORROWED", "as_floats", "float_weights", "stored_int8"]

BORROWED = ("model.decoder.embed_tokens.weight", "model.decoder.embed_positions.weight")
"""Weights that a Whisper draft has from its target where its own files lack them: `distill` keeps them."""


def float_weights(folder: Path, lent: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The tensors of a folder's safetensors files by name, those of integers as float32; of `lent` those that
    the files lack.

    Raises ValueError for a scale of another length, and what safetensors raises for damaged files.
    """
    from safetensors.torch import load_file

    stored: dict[str, Tensor] = {}
    for path in weight_files(folder):
        stored |= load_file(path)
    weights = {}
    for name, tensor in stored.items():
        scale = stored.get(name + SCALE)
        if tensor.dtype is torch.int8 and scale is not None:
            if scale.shape != tensor.shape[:1]:
                raise ValueError(
                    f"{name} has {len(tensor)} rows, and its scales are {list(scale.shape)}"
                )
            tensor = tensor.float().mul_(scale.float().view(-1, *[1] * (tensor.dim() - 1)))
        elif name.endswith(SCALE) and name.removesuffix(SCALE) in stored:
            continue
        weights[name] = tensor
    return {**(lent or {}), **weights}


def stored_int8(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `float_weights` reads as these tensors: those of two or more dimensions rounded to int8, beside
    their scales in float32, the others in float16."""
    stored: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if tensor.dim() < 2:
            stored[name] = tensor.half().contiguous()
            continue
        integers, scale = rounded(tensor.detach().float().flatten(1))
        stored[name] = integers.view(tensor.shape).contiguous()
        stored[name + SCALE] = scale.contiguous()
    return stored


def as_floats(folder: Path, out: Path, lent: Path | None = None) -> Path:
    """A folder that transformers alone can load, with the same numbers in float32: this one, or `out`, which
    is written where the weights are 8-bit integers. `lent` is the folder of a draft's target, for the
    embeddings that the draft's own lacks.

    Raises ValueError as `float_weights` does.
    """
    from safetensors.torch import save_file

    if not integer_weights(folder)[0]:
        return folder
    weights = float_weights(folder)
    if lent is not None:
        borrowed = float_weights(lent)
        weights |= {name: borrowed[name] for name in BORROWED if name not in weights}
    out.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.suffix != ".safetensors" and path.is_file():
            shutil.copyfile(path, out / path.name)
    config = json.loads((out / CONFIG).read_text(encoding="utf-8"))
    (out / CONFIG).write_text(json.dumps(config | {"dtype": "float32"}), encoding="utf-8")
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    return out
