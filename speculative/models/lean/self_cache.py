"""Keys and values of self-attention for all layers in one tensor.

Knows slots; nothing of masks or models. One scatter writes the keys and the values of a layer, and one
gather and one scatter move those of all layers.

No NaN of an earlier sequence reaches the next one in its row. A masked key still meets a weight of zero,
and 0 * NaN is NaN, so a prompt clears the slots behind it. On a CPU these are those that a forward may have
written, which the host knows without reading the device (`_written`); slots beyond are zero since the
allocation, and take no memory: rows are allocated for the longest text, and most are far shorter. Elsewhere
they are all: forwards are captured or compiled there, and numbers that one changes are conditions of the
other compiled ones, which would be compiled again after every larger forward.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .zero_pages import zeros


class SelfCache:
    """Keys and values `[L, 2, B, K, T, d]`: for layer l, `[l, 0]` are the keys and `[l, 1]` the values."""

    def __init__(
        self,
        *,
        layers: int,
        batch: int,
        heads: int,
        slots: int,
        size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, 2, batch, heads, slots, size)
        self.kv = zeros(shape, dtype, device)
        self._tracked = device.type == "cpu"
        self._reach = self._nodes = 0  # the largest of all forwards so far, where tracked

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values `[B, K, T, d]` of every layer, as views."""
        return [(layer[0], layer[1]) for layer in self.kv]

    @property
    def _written(self) -> int:
        # A row wrote below the reach of the time, and one that has ended goes on to write from the slot
        # where it ended: with more nodes than then, past that reach by at most their number.
        slots = self.kv.shape[4]
        return min(self._reach + self._nodes, slots) if self._tracked else slots

    def clear(self, rows: Tensor, length: int) -> None:
        """Zeroes what earlier sequences of `rows [K]` left behind slot `length`."""
        self._reach = max(self._reach, length)
        self.kv[:, :, :, :, length : self._written].index_fill_(2, rows, 0)

    def write_prompt(self, layer: int, rows: Tensor, kv: Tensor) -> None:
        """Writes `kv [2, K, heads, P, d]` to the first P slots of `rows [K]`."""
        self.kv[layer, :, :, :, : kv.shape[3]].index_copy_(1, rows, kv)

    def readable(self, rows: int, reach: int, nodes: int) -> list[Tensor]:
        """Keys and values `[2, B, K, reach, d]` of every layer, for a forward of the first `rows` rows that
        writes `nodes` tokens."""
        if self._tracked:
            self._reach, self._nodes = max(self._reach, reach), max(self._nodes, nodes)
        return list(self.kv[:, :, :rows, :, :reach].unbind(0))

    def index(self, slots: Tensor) -> Tensor:
        """Where a forward that writes to `slots [B, N]` puts `kv [2, B, K, N, d]`."""
        _, two, _, heads, _, size = self.kv.shape
        return slots[None, :, None, :, None].expand(two, len(slots), heads, slots.shape[1], size)

    def write(self, layer: int, index: Tensor, kv: Tensor) -> None:
        self.kv[layer].scatter_(3, index, kv)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copies keys and values from slots `source [B, M]` to slots `target [B, M]`, row by row.

        All reads come before all writes, so overlapping paths are safe.
        """
        layers = self.kv.shape[0]
        whole = (layers, *self.index(source).shape)
        taken = self.kv.gather(4, self.index(source).expand(whole))
        self.kv.scatter_(4, self.index(target).expand(whole), taken)
