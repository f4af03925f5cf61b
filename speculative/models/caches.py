"""Keys and values: self-attention of all layers in one tensor, and cross-attention over encoder states.

In self-attention one scatter writes the keys and the values of a layer.

No NaN of an earlier sequence reaches the next one in its row. A masked key still meets a weight of zero, and
0 * NaN is NaN, so a prompt clears the slots behind it. On a CPU these are those that a forward may have
written, which the host knows without reading the device (`_written`); slots beyond are zero since the
allocation, and take no memory: rows are allocated for the longest text, and most are far shorter. Elsewhere
they are all: forwards are captured or compiled there, and numbers that one changes are conditions of the
other compiled ones, which would be compiled again after every larger forward.

Zeros take no memory on a CPU because pages of a new anonymous mapping are zero without being written, and the
system provides each of them at its first write; `torch.zeros` writes every page.

Cross-attention of a few queries has the layout that the device's product wants, in two classes with the same
methods. Every admission overwrites the whole strip of its row, so nothing of an earlier sequence remains.

    Transposed  keys and values [B, H, d, S], attention as two matrix products: float32 and float64 on CPUs.
                Projections of encoder states are written where they stay, without a copy.
    Natural     keys and values [B, H, S, d], torch's fused attention: every other device and dtype.

Native kernels read the same self-attention caches; those of cross-attention have a layout that only they
know. Knows slots and layouts; nothing of masks or models.
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from math import prod

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from .weights import Linear

EXACT = frozenset({torch.float32, torch.float64})
"""Dtypes of attention as two products: less exact ones would round the scores."""


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


def sources_for(
    weights: Linear, *, layers: int, batch: int, heads: int, length: int, like: Tensor
) -> Sources:
    """Allocates cross-attention for `batch` rows of `length` states, as the tensor `like`."""
    size = like.shape[-1] // heads
    transposed = like.device.type == "cpu" and like.dtype in EXACT
    shape = (size, length) if transposed else (length, size)
    keys, values = (like.new_zeros((layers, batch, heads, *shape)) for _ in range(2))
    return (Transposed if transposed else Natural)(weights, keys, values)


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


SPLITTING = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""Kernels by preference where rows are few: flash attention divides the keys of a head between
multiprocessors, which cuDNN's kernel for several queries does not."""


class Natural(Sources):
    """See the module."""

    def __init__(self, weights: Linear, keys: Tensor, values: Tensor) -> None:
        super().__init__(weights, keys, values)
        self.multiprocessors = multiprocessors(keys.device)

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
        rows, nodes, heads, _ = queries.shape
        # On an H100 (132 multiprocessors) with 20 heads and 5 queries of 1,500 states, cuDNN's and flash
        # attention's us per layer: 1 row 20 and 12, 4 rows 21 and 20, 8 rows 38 and 33, 16 rows 55 and 77;
        # with one query cuDNN's kernel is the faster one at every number of rows.
        split = nodes > 1 and rows * heads < 2 * self.multiprocessors
        with sdpa_kernel(SPLITTING, set_priority=True) if split else nullcontext():
            return _fused(queries, self.keys[layer, :rows], self.values[layer, :rows])


def multiprocessors(device: torch.device) -> int:
    """Of a CUDA device; 0 of others."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


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


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """As `torch.zeros`. On CPUs the tensor owns a mapping of its own, aligned to pages: for large ones that
    are written in part. Raises MemoryError."""
    count = prod(shape)
    if device.type != "cpu" or count == 0:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.frombuffer(_mapping(count * dtype.itemsize), dtype=dtype).view(*shape)


def _mapping(size: int) -> mmap.mmap:
    # Private: shared memory would be a file's, with a limit of its own.
    try:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"not enough memory for a cache of {size} bytes") from error
