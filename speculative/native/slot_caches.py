"""Caches that the kernels read and write.

Knows layouts; nothing of models. Self-attention keys and values lie as in every engine, `[B, H, T, d]` per
layer; cross-attention has the kernels' own layout, which only they read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .structures import Stored

DTYPES = {Stored.FLOAT32: torch.float32, Stored.BFLOAT16: torch.bfloat16}


class SelfCaches:
    """Keys and values `[L, 2, B, H, T, d]` of `heads` heads in `slots` slots per row."""

    def __init__(
        self, layers: int, batch: int, heads: int, slots: int, size: int, stored: Stored
    ) -> None:
        self.kv = torch.zeros((layers, 2, batch, heads, slots, size), dtype=DTYPES[stored])
        self.slots = slots

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values `[B, H, T, d]` of every layer, as views."""
        return [(layer[0], layer[1]) for layer in self.kv]

    def addresses(self, layer: int) -> tuple[int, int]:
        return self.kv[layer, 0].data_ptr(), self.kv[layer, 1].data_ptr()

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copies what lies in slots `source [B, M]` to slots `target [B, M]` of the first B rows. All reads
        come before all writes, so overlapping paths are safe."""
        layers, two, _, heads, _, size = self.kv.shape

        def index(slots: Tensor) -> Tensor:
            shape = (layers, two, len(slots), heads, slots.shape[1], size)
            return slots[None, None, :, None, :, None].expand(shape)

        self.kv.scatter_(4, index(target), self.kv.gather(4, index(source)))


def cross_caches(layers: int, strips: int, size: int) -> Tensor:
    """Zeroed bytes `[L, 2, strips * size]` for the keys and values of `strips` rows and heads."""
    return torch.zeros((layers, 2, strips * size), dtype=torch.uint8)
