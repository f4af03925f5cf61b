"""Uniform random numbers keyed by (seed, start of the round, slot, stream): each depends on nothing else.

A sampled answer must not change with the rows that share its batch, which rules out a generator that
is advanced by use. This is a counter-based hash instead: 32-bit integer mixing (C. Wellons' `lowbias32`)
in int64 arithmetic, which every backend has, and no state.

Why the start of the round is part of the key: a round that accepts only some of its drafts has already
used the random numbers of the slots after them, and block verification decides by them. If the next
round used them again it would condition on their outcome, and the text would no longer follow the
target's distribution. A row commits at least one token per round, so no two of its rounds start at the
same slot, and the start depends on the row's own text and drafts only.
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


def uniform(seed: Tensor, start: Tensor, slot: Tensor, stream: Stream) -> Tensor:
    """Numbers in [0, 1) with 24 random bits, float32.

    `start` is the row's length when the round began, `slot` the place of the token to be decided. All
    three tensors are int64 and broadcast.
    """
    key = _mix((seed & _MASK) ^ (0x9E3779B9 * int(stream) & _MASK))
    key = _mix(key ^ ((seed >> 32) & _MASK))
    key = _mix(key ^ _mix(start & _MASK))
    key = _mix(key ^ _mix(slot & _MASK))
    return (key >> 8).float() * (1.0 / (1 << 24))
