"""Weights in 8 bits, as the bundled folders hold them (`speculative/models/quantized.py`)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from forescribe.speculative.models.checkpoint import POSITIONS, SCALE
from forescribe.speculative.models.quantized import rounded, sinusoids


def stored_int8(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `float_weights` reads as these tensors: those of two or more dimensions rounded to int8, beside
    their scales in float32, the others in float16."""
    stored: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if tensor.dim() < 2:
            stored[name] = tensor.half().contiguous()
            continue
        integers, scale = rounded(tensor.detach().float().flatten(1))
        if name != POSITIONS or not integers.equal(rounded(sinusoids(*tensor.shape))[0]):
            stored[name] = integers.view(tensor.shape).contiguous()
        stored[name + SCALE] = scale.contiguous()
    return stored
