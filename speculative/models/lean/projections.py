"""Projections and norms of transformers' modules as plain tensors; several projections as one matrix.

Knows `torch.nn.Linear`, its form of 8-bit integers and modules with a weight; nothing of any model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..quantized.int8_product import int8_product


@dataclass(frozen=True, eq=False)
class Norm:
    """Weight `[D]` of a normalisation; an RMS norm has no bias."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Linear:
    """Weight `[out, in]` and bias `[out]` of a projection; in int8, the scale `[out]` of each output."""

    weight: Tensor
    bias: Tensor | None = None
    scale: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """`x [..., in]` -> `[..., out]`."""
        if self.scale is not None:
            return int8_product(x, self.weight, self.scale, self.bias)
        return linear(x, self.weight, self.bias)

    def rows(self, outputs: Tensor | slice) -> Linear:
        """The projection to these outputs alone."""
        rest = (None if x is None else x[outputs] for x in (self.bias, self.scale))
        return Linear(self.weight[outputs], *rest)


def norm_of(module: Any) -> Norm:
    """The weights of a normalisation."""
    return Norm(*_tensors(module))


def linear_of(module: Any) -> Linear:
    """The weights of a `torch.nn.Linear`, or of its form in int8."""
    scale = getattr(module, "scale", None)
    return Linear(*_tensors(module), None if scale is None else scale.detach())


def _tensors(module: Any) -> tuple[Tensor, Tensor | None]:
    bias = getattr(module, "bias", None)
    return module.weight.detach(), None if bias is None else bias.detach()


def fused(modules: Sequence[Any], scales: Sequence[float] | None = None) -> Linear:
    """Projections of one input as one matrix, each multiplied by its scale; a missing bias is zero where
    another has one.

    The modules' own weights become parts of that matrix, equal as before, so that no second copy remains:
    query, key, value and feed-forward are most of a model. Only those with a scale are kept apart. In int8
    it is a part of the outputs' scales.
    """
    factors = scales or [1.0] * len(modules)
    parts = [linear_of(module) for module in modules]
    own = [p.scale * s for p, s in zip(parts, factors, strict=True) if p.scale is not None]
    if len(own) == len(parts):
        scales = None
    weight = _joined([part.weight for part in parts]) if scales is None else None
    if weight is None:
        scaled = [p.weight if own else p.weight * s for p, s in zip(parts, factors, strict=True)]
        weight = torch.cat(scaled)
        for module, view, factor in zip(
            modules, weight.split([*map(_rows, parts)]), factors, strict=True
        ):
            if own or factor == 1:
                module.weight.data = view
    joined = torch.cat(own) if own else None
    if all(p.bias is None for p in parts):
        return Linear(weight, None, joined)
    like = next(p.bias for p in parts if p.bias is not None)
    biases = [
        like.new_zeros(_rows(p)) if p.bias is None else p.bias * s
        for p, s in zip(parts, factors, strict=True)
    ]
    return Linear(weight, torch.cat(biases), joined)


def _rows(part: Linear) -> int:
    return len(part.weight)


def _joined(weights: Sequence[Tensor]) -> Tensor | None:
    """The matrix that these are consecutive parts of, as an earlier call has left them, or None."""
    first, end = weights[0], weights[0].data_ptr()
    for weight in weights:
        same = weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or weight.data_ptr() != end or not weight.is_contiguous():
            return None
        end += weight.numel() * weight.element_size()
    rows = sum(map(len, weights))
    return first.as_strided((rows, first.shape[1]), first.stride(), first.storage_offset())
