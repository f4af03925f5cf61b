"""Pauses: the quiet parts of a window, found in its log-mel features.

Finer than voice activity (10 ms instead of 32, and without its delay), and available in both long-form
modes. Knows nothing of words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

HOP = 160
"""Samples of a feature frame: 10 ms."""

SHORTEST = 10
"""Frames. A shorter quiet part may be the closure of a stop consonant."""

QUIET = 0.2
"""Quiet is the lowest fifth of the way, in dB, from a window's quietest frames (5th percentile) to its
loudest (95th). Measured on synthesised speech with known word times: a pause is found 13 ms late at
its beginning and 4 ms late at its end (medians), 19 of 20 within 40 ms; in noise 20 dB below the speech
it is found too short, never too long."""

LEAST_RANGE_DB = 12.0
"""With a smaller difference between quiet and loud frames, no pauses are reported."""


class Pause(NamedTuple):
    """Samples from the window's start, end exclusive."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


def pauses(features: Tensor, length: int) -> tuple[Pause, ...]:
    """The pauses in the first `length` samples of a window, from its features `[M, F]`."""
    # Features are (log10 power + 4) / 4. The mean over bands, not the power: a hiss counts as speech.
    decibels = 40.0 * features.float().mean(0).cpu().numpy()[: -(-length // HOP)]  # [F]
    return tuple(Pause(a * HOP, min(b * HOP, length)) for a, b in _runs(_quiet(decibels)))


def within(pauses: Sequence[Pause], length: int) -> tuple[Pause, ...]:
    """The parts of pauses in the first `length` samples of a window."""
    return tuple(Pause(p.start, min(p.end, length)) for p in pauses if p.start < length)


def _quiet(decibels: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    if not len(decibels):
        return np.zeros(0, np.bool_)
    low, high = np.percentile(decibels, (5, 95))
    if high - low < LEAST_RANGE_DB:
        return np.zeros(len(decibels), np.bool_)
    return np.asarray(decibels < low + QUIET * (high - low))


def _runs(quiet: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Runs [start, end) of at least SHORTEST quiet frames."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], quiet, [False]]).astype(np.int8)))
    runs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [(a, b) for a, b in runs if b - a >= SHORTEST]
