"""The records of a head: what the loaders of EAGLE-3 and MTP make, and what drafters and trainers run.

A head reads, at position t, the state of token t and the embedding of token t + 1, and predicts token t + 2.
Its layers are functions over plain tensors, or a layer of the target's own class; both keep keys and values
in a cache of transformers' interface, as the adapters of targets do: slots of rows in decoding, growing ones
in training. Knows tensors; nothing of files, rows or drafts.

Letters besides those of `speculative.types`: H width of the head, n taps, U tokens that the head proposes, d
size of an attention head, I width of a layer's input, R slots that are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from ..plain import activation
from ..slot_model import LayerShape, window_mask
from ..weights import Linear

LAST = -1
"""The tap behind the target's final norm."""


@dataclass(frozen=True, eq=False)
class Head:
    """EAGLE-3, or an MTP layer: the input of position t joins the embedding of token t + 1 with feature t.

    EAGLE-3's first layer reads both side by side, `[2 H]`, and its residual is the feature; MTP projects
    them to `[H]` by `join`, which is input and residual of an ordinary layer.
    """

    family: str  # for people
    taps: Taps
    embed_norm: Tensor  # [E], E the width of embeddings
    feature_norm: Tensor  # [H]
    body: LeanBody | ModuleBody
    output: Output
    join: Linear | None = None  # [H, E + H]
    residual_normed: bool = False  # norm_before_residual
    feeds_normed: bool = False  # norm_output: the next feature is the state behind the norm
    embedding: Tensor | None = None  # [V, E]; None: the target's

    def step(self, embedded: Tensor, feature: Tensor, run: Run) -> Tensor:
        """The states `[B, N, H]` of positions with these embeddings and features."""
        eps = self.output.eps
        left = rms_norm(embedded, embedded.shape[-1:], self.embed_norm, eps)
        right = rms_norm(feature, feature.shape[-1:], self.feature_norm, eps)
        x = torch.cat([left, right], -1)
        if self.join is not None:
            x = self.join(x)
            return self.body(x, x, run)
        residual = right if self.residual_normed else feature
        return self.body(x, residual, run)


@dataclass(frozen=True)
class TargetShape:
    """The sizes of the target that a head must fit; `name` is for messages."""

    name: str
    width: int
    layers: int
    vocab: int


@dataclass(frozen=True, eq=False)
class Taps:
    """How the target's states become the feature of a position: taps `[..., n, D]` to `[..., H]`.

    The norms are one for each tap, or one for all of them together, or none. Without a projection the only
    tap is the feature.
    """

    layers: tuple[int, ...]  # states entering these layers of the target, or LAST
    eps: float
    norms: tuple[Tensor, ...] = ()  # [D] each, or one of [n D]
    project: Linear | None = None  # [H, n D]

    def feature(self, taps: Tensor) -> Tensor:
        """The features `[..., H]` of taps `[..., n, D]`."""
        if len(self.norms) > 1:
            width = taps.shape[-1:]
            parts = [
                rms_norm(taps[..., i, :], width, w, self.eps) for i, w in enumerate(self.norms)
            ]
            x = torch.cat(parts, -1)
        else:
            x = taps.flatten(-2)
            if self.norms:
                x = rms_norm(x, x.shape[-1:], self.norms[0], self.eps)
        return x if self.project is None else self.project(x)


@dataclass(frozen=True, eq=False)
class Output:
    """From the last layer to logits: a norm, and an output layer of its own or the target's.

    `ids` are the token ids of the own output layer's rows; None: row i is token i.
    """

    norm: Tensor  # [H]
    eps: float
    head: Linear | None = None  # [U, H]; None: the target's
    ids: Tensor | None = None  # [U] int64

    def normed(self, states: Tensor) -> Tensor:
        return rms_norm(states, states.shape[-1:], self.norm, self.eps)


@dataclass(frozen=True, eq=False)
class Run:
    """Where the positions of a pass are, what they read and where keys and values are kept."""

    positions: Tensor  # [B, N]
    mask: Tensor  # [B, 1, N, R], additive
    cache: Any


@dataclass(frozen=True, eq=False)
class LeanBody:
    """Layers as functions over plain tensors. `config` is transformers', and `rotary` gives its angles."""

    layers: tuple[LeanLayer, ...]
    config: Any
    rotary: Any

    @property
    def shapes(self) -> list[LayerShape]:
        """The keys and values of each layer."""
        size = self.config.head_dim
        return [LayerShape(self.config.num_key_value_heads, size, size)] * len(self.layers)

    def __call__(self, inputs: Tensor, residual: Tensor, run: Run) -> Tensor:
        """States `[B, N, H]` of `inputs [B, N, I]`; the first layer adds to `residual [B, N, H]`."""
        cos, sin = (each[:, None] for each in self.rotary(inputs, position_ids=run.positions))
        x, states = inputs, residual
        for index, layer in enumerate(self.layers):
            if layer.input_norm is not None:
                x = self._norm(x, layer.input_norm)
            x = states = self._layer(index, layer, x, states, (cos, sin), run)
        return states

    def _layer(
        self,
        index: int,
        layer: LeanLayer,
        x: Tensor,
        residual: Tensor,
        angles: tuple[Tensor, Tensor],
        run: Run,
    ) -> Tensor:
        config, size = self.config, self.config.head_dim
        queries = layer.query(x).unflatten(-1, (-1, size)).transpose(1, 2)
        keys, values = layer.key_value(x).unflatten(-1, (2, -1, size)).permute(2, 0, 3, 1, 4)
        if layer.query_norm is not None:
            queries = self._norm(queries, layer.query_norm)
        if layer.key_norm is not None:
            keys = self._norm(keys, layer.key_norm)
        keys, values = run.cache.update(_rotated(keys, angles), values, index)
        mask = run.mask
        if layer.window is not None:
            mask = window_mask(mask, run.positions, layer.window)
        read = scaled_dot_product_attention(
            _rotated(queries, angles),
            keys,
            values,
            attn_mask=mask,
            enable_gqa=config.num_attention_heads != config.num_key_value_heads,
        )
        states = residual + layer.out(read.transpose(1, 2).flatten(2))
        gate, up = layer.gate_up(self._norm(states, layer.post_norm)).chunk(2, -1)
        return states + layer.down(activation(config.hidden_act)(gate) * up)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, x.shape[-1:], weight, self.config.rms_norm_eps)


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
class ModuleBody:
    """The same of one decoder layer of the target's own class, whatever attention and experts it has."""

    layer: Any
    rotary: Any
    shape: LayerShape

    @property
    def shapes(self) -> list[LayerShape]:
        return [self.shape]

    def __call__(self, inputs: Tensor, residual: Tensor, run: Run) -> Tensor:
        states: Any = self.layer(
            inputs,
            attention_mask=run.mask,
            position_ids=run.positions,
            position_embeddings=self.rotary(inputs, position_ids=run.positions),
            past_key_values=run.cache,
        )
        found: Tensor = states[0] if isinstance(states, tuple) else states
        return found


def _rotated(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = angles
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin
