"""Caches that the kernels read and write.

Knows layouts; nothing of models. Self-attention keys and values lie as in every engine, `[B, H, T, d]` per
layer; cross-attention has the kernels' own layout, which only they read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.lean.self_cache import SelfCache
from ..models.lean.zero_pages import zeros
from .structures import Stored

DTYPES = {Stored.FLOAT32: torch.float32, Stored.BFLOAT16: torch.bfloat16}


class SelfCaches(SelfCache):
    """Keys and values `[L, 2, B, H, T, d]` of `heads` heads in `slots` slots per row, on the CPU."""

    def __init__(
        self, layers: int, batch: int, heads: int, slots: int, size: int, stored: Stored
    ) -> None:
        super().__init__(
            layers=layers,
            batch=batch,
            heads=heads,
            slots=slots,
            size=size,
            dtype=DTYPES[stored],
            device=torch.device("cpu"),
        )

    def addresses(self, layer: int) -> tuple[int, int]:
        """Where the keys and the values of a layer begin."""
        return self.kv[layer, 0].data_ptr(), self.kv[layer, 1].data_ptr()


def cross_caches(layers: int, strips: int, size: int) -> Tensor:
    """Zeroed bytes `[L, 2, strips * size]` for the keys and values of `strips` rows and heads. They take
    memory as rows are used: 35 MB for each of whisper-base's."""
    return zeros((layers, 2, strips * size), torch.uint8, torch.device("cpu"))
