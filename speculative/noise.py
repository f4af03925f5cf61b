"""Uniform noise keyed by (seed, slot, stream), so that a draw depends on nothing else.

A sampled answer must not change with the rows that share its batch, with the round it fell into or
with the draft length, which rules out a generator that is advanced by use. This is a counter-based
hash instead: 32-bit integer mixing (C. Wellons' `lowbias32`) in int64 arithmetic, which every
backend has, and no state.
"""

from __future__ import annotations

from enum import IntEnum

from torch import Tensor

_MASK = 0xFFFFFFFF


class Stream(IntEnum):
    """Draws of one slot that must be independent of each other."""

    DRAFT = 1
    ACCEPT = 2
    EXTRA = 3


def _mix(x: Tensor) -> Tensor:
    x = (x ^ (x >> 16)) * 0x7FEB352D & _MASK
    x = (x ^ (x >> 15)) * 0x846CA68B & _MASK
    return x ^ (x >> 16)


def uniform(seed: Tensor, slot: Tensor, stream: Stream) -> Tensor:
    """Numbers in [0, 1) with 24 random bits, float32; `seed` and `slot` are int64 and broadcast."""
    key = _mix((seed & _MASK) ^ (0x9E3779B9 * int(stream) & _MASK))
    key = _mix(key ^ ((seed >> 32) & _MASK))
    key = _mix(key ^ _mix(slot & _MASK))
    return (key >> 8).float() * (1.0 / (1 << 24))
