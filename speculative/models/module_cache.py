"""SlotCache: preallocated keys and values, with the same number of slots for every row.

A transformers `Cache` for unmodified models, without their notion of one common length: the caller
says into which slots a forward writes (`slots [B, N]`) and masks what a query may read, so rolling
back a rejected draft needs no work: the next round overwrites it. Two views share the tensors:

    decode   every row, writing at `slots`, reading whole rows
    prefill  the `rows [K]` being admitted, writing from slot 0, reading only what it wrote
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache

from .slot_model import LayerShape


@dataclass
class Cursor:
    """Where the next forward writes and reads; one object shared by the layers of a cache."""

    slots: Tensor  # [B, N] int64
    reach: int  # slots from here on are not read


class _Layer(CacheLayerMixin):
    """The interface of a transformers cache layer besides `update`."""

    is_compileable = True
    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values = keys, values  # [B, heads, T, head_dim]
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise AssertionError("slot caches are allocated up front")

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        raise AssertionError("cross-attention keys are written by a prefill only")

    def get_seq_length(self) -> int:
        return 0  # positions are always passed explicitly

    def get_max_length(self) -> int:
        return int(self.keys.shape[2])

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_max_length(), 0


class SlotLayer(_Layer):
    """Scatters a forward's keys and values to the cursor's slots; attention reads to its reach."""

    def __init__(self, keys: Tensor, values: Tensor, cursor: Cursor) -> None:
        super().__init__(keys, values)
        self.cursor = cursor

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        slots = self.cursor.slots[:, None, :, None]
        self.keys.scatter_(2, slots.expand_as(key_states), key_states)
        self.values.scatter_(2, slots.expand_as(value_states), value_states)
        rows, reach = len(key_states), self.cursor.reach
        return self.keys[:rows, :, :reach], self.values[:rows, :, :reach]


class PrefillLayer(_Layer):
    """Writes `[K, heads, P, head_dim]` to the first P slots of `rows`; attention reads what it wrote.

    The slots after P become zero: NaN of an earlier sequence must not reach the next one in its row.
    """

    def __init__(self, keys: Tensor, values: Tensor, rows: Tensor) -> None:
        super().__init__(keys, values)
        self.rows = rows

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        length = key_states.shape[2]
        self.keys[self.rows, :, :length] = key_states
        self.values[self.rows, :, :length] = value_states
        self.keys[self.rows, :, length:] = 0
        self.values[self.rows, :, length:] = 0
        return key_states, value_states


class SlotCache:
    """Keys and values for the self-attention of each layer, and for cross-attention where there is one.

    Buffers start at zero: a masked slot still meets the softmax's zero weight, and 0 * NaN is NaN.
    """

    def __init__(
        self,
        *,
        batch: int,
        slots: int,
        layers: Sequence[LayerShape],
        dtype: torch.dtype,
        device: torch.device,
        cross_slots: int | None = None,
    ) -> None:
        def buffers(length: int) -> list[tuple[Tensor, Tensor]]:
            def zeros(heads: int, dim: int) -> Tensor:
                return torch.zeros((batch, heads, length, dim), dtype=dtype, device=device)

            return [(zeros(s.heads, s.key_dim), zeros(s.heads, s.value_dim)) for s in layers]

        self.slots = slots
        self.cursor = Cursor(torch.zeros((batch, 1), dtype=torch.int64, device=device), slots)
        self.layers = buffers(slots)
        self.cross = None if cross_slots is None else buffers(cross_slots)
        self._decode = {batch: self._decode_view(batch)}  # by the number of rows

    def decode(self, slots: Tensor, reach: int) -> Cache:
        """The view of the first B rows, set to write at `slots [B, N]` and to read below `reach`.

        Valid until the next call.
        """
        self.cursor.slots, self.cursor.reach = slots, reach
        rows = len(slots)
        if rows not in self._decode:
            self._decode[rows] = self._decode_view(rows)
        return self._decode[rows]

    def _decode_view(self, rows: int) -> Cache:
        layers: list[Any] = [SlotLayer(k, v, self.cursor) for k, v in self.layers]
        if self.cross is None:
            return Cache(layers=layers)
        cross: list[Any] = [_Layer(k[:rows], v[:rows]) for k, v in self.cross]
        view = EncoderDecoderCache(Cache(layers=layers), Cache(layers=cross))
        view.is_updated = dict.fromkeys(range(len(layers)), True)
        return view

    def prefill(self, rows: Tensor) -> Cache:
        """A view that writes prompts into `rows [K]`, and their cross-attention keys with them."""
        layers: list[Any] = [PrefillLayer(k, v, rows) for k, v in self.layers]
        if self.cross is None:
            return Cache(layers=layers)
        cross: list[Any] = [PrefillLayer(k, v, rows) for k, v in self.cross]
        view = EncoderDecoderCache(Cache(layers=layers), Cache(layers=cross))
        view.is_updated = dict.fromkeys(range(len(layers)), False)
        return view
