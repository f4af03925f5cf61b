"""Cross-attention of a few queries over many encoder states, in the layout that the device's product wants.

Knows keys and values of encoder states; nothing of decoders. Two layouts with the same methods:

    Transposed  keys and values [B, H, d, S], attention as two matrix products: float32 and float64 on CPUs.
                Projections of encoder states are written where they stay, without a copy.
    Natural     keys and values [B, H, S, d], torch's fused attention: every other device and dtype.

Every admission overwrites the whole strip of its row, so nothing of an earlier sequence remains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .weights import Linear

EXACT = frozenset({torch.float32, torch.float64})  # below, products would round the scores


class Sources(ABC):
    """Keys and values of encoder states for `layers` layers and `batch` rows of S states.

    `weights` is `WhisperWeights.cross_kv`. Queries are `[B, N, H, d]` and carry the scale.
    """

    def __init__(self, weights: Linear, keys: Tensor, values: Tensor) -> None:
        assert weights.bias is not None
        self.keys, self.values = keys, values  # [L, B, ...]
        layers, width = len(keys), weights.weight.shape[1]
        self.weight = weights.weight.view(layers, 2, width, width)
        self.bias = weights.bias.view(layers, 2, width)

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of every layer, as views."""
        return list(zip(self.keys, self.values, strict=True))

    @abstractmethod
    def admit(self, layer: int, rows: Tensor, states: Tensor, queries: Tensor) -> Tensor:
        """Projects `states [K, S, D]` into `rows [K]` of a layer; `queries [K, P, H, d]` of the prompts read
        them: returns `[K P, D]`."""

    @abstractmethod
    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """Attention of `queries [B, N, H, d]` of the first B rows: returns `[B N, D]`."""


class Transposed(Sources):
    """See the module."""

    def admit(self, layer: int, rows: Tensor, states: Tensor, queries: Tensor) -> Tensor:
        width = states.shape[2]
        read = []
        for row, own, asked in zip(rows.tolist(), states, queries, strict=True):
            keys, values = self.keys[layer, row], self.values[layer, row]  # [H, d, S]
            torch.mm(self.weight[layer, 0], own.t(), out=keys.view(width, -1))
            bias = self.bias[layer, 1][:, None]
            torch.addmm(bias, self.weight[layer, 1], own.t(), out=values.view(width, -1))
            read.append(_products(asked[None], keys, values))
        return torch.cat(read)

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        rows = len(queries)
        keys, values = self.keys[layer, :rows], self.values[layer, :rows]
        return _products(queries, keys.flatten(0, 1), values.flatten(0, 1))


class Natural(Sources):
    """See the module."""

    def admit(self, layer: int, rows: Tensor, states: Tensor, queries: Tensor) -> Tensor:
        count, length, width = states.shape
        both = torch.addmm(
            self.bias[layer].flatten(), states.flatten(0, 1), self.weight[layer].flatten(0, 1).t()
        )
        kv = both.view(count, length, 2, *queries.shape[2:]).permute(2, 0, 3, 1, 4)
        self.keys[layer].index_copy_(0, rows, kv[0])
        self.values[layer].index_copy_(0, rows, kv[1])
        return _fused(queries, kv[0], kv[1])

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        rows = len(queries)
        return _fused(queries, self.keys[layer, :rows], self.values[layer, :rows])


def sources_for(
    weights: Linear, *, layers: int, batch: int, heads: int, length: int, like: Tensor
) -> Sources:
    """Allocates cross-attention for `batch` rows of `length` states, as the tensor `like`."""
    size = like.shape[-1] // heads
    transposed = like.device.type == "cpu" and like.dtype in EXACT
    shape = (size, length) if transposed else (length, size)
    keys, values = (like.new_zeros((layers, batch, heads, *shape)) for _ in range(2))
    return (Transposed if transposed else Natural)(weights, keys, values)


def _products(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """`queries [B, N, H, d]`, keys and values `[B H, d, S]` -> `[B N, D]`."""
    batch, nodes, heads, size = queries.shape
    asked = queries.transpose(1, 2).reshape(batch * heads, nodes, size)
    weights = torch.bmm(asked, keys).softmax(-1)
    read = torch.bmm(weights, values.transpose(1, 2))  # [B H, N, d]
    return read.view(batch, heads, nodes, size).transpose(1, 2).reshape(batch * nodes, -1)


def _fused(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """`queries [B, N, H, d]`, keys and values `[B, H, S, d]` -> `[B N, D]`."""
    read = scaled_dot_product_attention(queries.transpose(1, 2), keys, values, scale=1.0)
    return read.transpose(1, 2).reshape(queries.shape[0] * queries.shape[1], -1)
