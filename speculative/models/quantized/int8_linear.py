"""Projections of 8-bit integers as modules, and models made of them.

Knows `torch.nn.Linear` and where Whisper's and causal models' projections are; nothing of engines.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import LoadError
from .int8_product import int8_product, quantized


class Int8Linear(torch.nn.Module):
    """`weight [N, K]` of int8 with `scale [N]` and `bias [N]`: see `int8_product`."""

    weight: torch.nn.Parameter
    scale: torch.nn.Parameter
    bias: torch.nn.Parameter | None

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        for name, tensor in (("weight", weight), ("scale", scale), ("bias", bias)):
            held = None if tensor is None else torch.nn.Parameter(tensor, requires_grad=False)
            self.register_parameter(name, held)

    @classmethod
    def of(cls, linear: torch.nn.Linear) -> Int8Linear:
        """A projection rounded to int8; its bias is shared."""
        bias = None if linear.bias is None else linear.bias.detach()
        return cls(*quantized(linear.weight), bias)

    def rows(self, tokens: Tensor) -> Int8Linear:
        """A projection to these outputs `[C]` alone."""
        bias = None if self.bias is None else self.bias[tokens]
        return Int8Linear(self.weight[tokens], self.scale[tokens], bias)

    def forward(self, x: Tensor) -> Tensor:
        return int8_product(x, self.weight, self.scale, self.bias)


def is_int8(model: Any) -> bool:
    """Whether a model's projections are 8-bit integers."""
    return any(isinstance(module, Int8Linear) for module in model.modules())


def quantize_whisper(model: Any) -> None:
    """Rounds the decoder of a Whisper and its head to int8, in place. The encoder and the projections of its
    states to keys and values keep their format: they run once for a window."""
    for layer in model.model.decoder.layers:
        cross = (layer.encoder_attn.k_proj, layer.encoder_attn.v_proj)
        _quantize(layer, keep=cross)
    _quantize(model, only=(model.proj_out,))


def quantize_causal(model: Any) -> None:
    """Rounds all projections of a causal LM and its head to int8, in place; embeddings keep their format.
    Raises LoadError for a model without layers of `torch.nn.Linear`."""
    if not any(type(module) is torch.nn.Linear for module in model.base_model.modules()):
        kind = model.config.model_type
        raise LoadError(
            f"--quantize int8 needs projections of torch.nn.Linear, and {kind} has none"
        )
    _quantize(model)


def _quantize(
    root: torch.nn.Module,
    *,
    keep: tuple[torch.nn.Module, ...] = (),
    only: tuple[torch.nn.Module, ...] = (),
) -> None:
    for parent in list(root.modules()):
        for name, child in parent.named_children():
            wanted = not only or any(child is each for each in only)
            if (
                type(child) is torch.nn.Linear
                and wanted
                and not any(child is each for each in keep)
            ):
                setattr(parent, name, Int8Linear.of(child))
