"""The layers of a head: as functions over plain tensors, or a layer of the target's own class.

Both keep keys and values in a cache of transformers' interface, as the adapters of targets do: slots of rows
in decoding, growing ones in training. Knows layers; nothing of taps, tokens or drafts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention
from transformers.activations import ACT2FN

from ..cache import LayerShape, window_mask
from ..lean.projections import Linear


class Body(Protocol):
    """The layers of a head."""

    @property
    def shapes(self) -> list[LayerShape]:
        """The keys and values of each layer."""

    def __call__(
        self, inputs: Tensor, residual: Tensor, positions: Tensor, mask: Tensor, cache: Any
    ) -> Tensor:
        """States `[B, N, H]` of `inputs [B, N, I]` at `positions [B, N]`; the first layer adds to
        `residual [B, N, H]`. `mask [B, 1, N, R]` is additive."""


@dataclass(frozen=True, eq=False)
class LeanLayer:
    """One layer of Llama's or Qwen 3's form."""

    input_norm: Tensor | None  # None: its input is normalised already
    query: Linear  # [heads d, I]
    key_value: Linear  # [2 kv_heads d, I]
    query_norm: Tensor | None  # [d], of every head, before the rotation
    key_norm: Tensor | None
    out: Linear  # [H, heads d]
    post_norm: Tensor
    gate_up: Linear  # [2 F, H]
    down: Linear  # [H, F]
    window: int | None = None  # a query reads this many positions, itself included; None: all


@dataclass(frozen=True, eq=False)
class LeanForm:
    """What the layers of a body have in common."""

    heads: int
    kv_heads: int
    head_size: int
    eps: float
    activation: str  # transformers' name of it
    inv_freq: Tensor  # [d / 2] float32
    rotary_scale: float = 1.0


@dataclass(frozen=True, eq=False)
class LeanBody:
    """Layers as functions over plain tensors."""

    layers: tuple[LeanLayer, ...]
    form: LeanForm

    @property
    def shapes(self) -> list[LayerShape]:
        size = self.form.head_size
        return [LayerShape(self.form.kv_heads, size, size) for _ in self.layers]

    def __call__(
        self, inputs: Tensor, residual: Tensor, positions: Tensor, mask: Tensor, cache: Any
    ) -> Tensor:
        angles = self.angles(positions, inputs.dtype)
        x, states = inputs, residual
        for index, layer in enumerate(self.layers):
            if layer.input_norm is not None:
                x = self._norm(x, layer.input_norm)
            keys, values = self.keys_values(layer, x, angles)
            keys, values = cache.update(keys, values, index)
            reads = mask if layer.window is None else window_mask(mask, positions, layer.window)
            x = states = self._layer(layer, x, states, angles, reads, keys, values)
        return states

    def angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine `[B, 1, N, d]` of `positions [B, N]`."""
        half = positions[:, None, :, None].float() * self.form.inv_freq
        angle = torch.cat([half, half], -1)
        scale = self.form.rotary_scale
        return (angle.cos() * scale).to(dtype), (angle.sin() * scale).to(dtype)

    def keys_values(
        self, layer: LeanLayer, x: Tensor, angles: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Keys, rotated, and values `[B, kv_heads, N, d]` of `x [B, N, I]`."""
        form = self.form
        both = _linear(x, layer.key_value).unflatten(-1, (2, form.kv_heads, form.head_size))
        keys, values = both.permute(2, 0, 3, 1, 4)
        if layer.key_norm is not None:
            keys = self._norm(keys, layer.key_norm)
        return _rotated(keys, angles), values

    def _layer(
        self,
        layer: LeanLayer,
        x: Tensor,
        residual: Tensor,
        angles: tuple[Tensor, Tensor],
        mask: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        form = self.form
        queries = (
            _linear(x, layer.query).unflatten(-1, (form.heads, form.head_size)).transpose(1, 2)
        )
        if layer.query_norm is not None:
            queries = self._norm(queries, layer.query_norm)
        read = scaled_dot_product_attention(
            _rotated(queries, angles),
            keys,
            values,
            attn_mask=mask,
            enable_gqa=form.heads != form.kv_heads,
        )
        states = residual + _linear(read.transpose(1, 2).flatten(2), layer.out)
        gate, up = _linear(self._norm(states, layer.post_norm), layer.gate_up).chunk(2, -1)
        return states + _linear(ACT2FN[form.activation](gate) * up, layer.down)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, x.shape[-1:], weight, self.form.eps)


@dataclass(frozen=True, eq=False)
class ModuleBody:
    """One decoder layer of transformers, of the target's own class: whatever attention and experts it has.

    `rotary` gives its angles.
    """

    layer: Any
    rotary: Any
    shape: LayerShape

    @property
    def shapes(self) -> list[LayerShape]:
        return [self.shape]

    def __call__(
        self, inputs: Tensor, residual: Tensor, positions: Tensor, mask: Tensor, cache: Any
    ) -> Tensor:
        states: Any = self.layer(
            inputs,
            attention_mask=mask,
            position_ids=positions,
            position_embeddings=self.rotary(inputs, position_ids=positions),
            past_key_values=cache,
        )
        found: Tensor = states[0] if isinstance(states, tuple) else states
        return found


def _linear(x: Tensor, weights: Linear) -> Tensor:
    return linear(x, weights.weight, weights.bias)


def _rotated(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = angles
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin
