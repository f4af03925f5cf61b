"""Errors of word times: the times of written words against those of spoken words.

Only words with the same text are compared; their number is part of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

import numpy as np

from forescribe.asr.formats.transcript_parts import Word
from training.sentences.held_out import fold
from training.speech.timed_speech import TimedWord
from training.speech.voices import RATE

MEDIAN_S, P95_S = 0.08, 0.25
"""Targets for the median and the 95th percentile of the errors."""


@dataclass(frozen=True)
class WordErrors:
    """Errors in seconds of `matched` of `spoken` words; positive if the time is late."""

    spoken: int = 0
    matched: int = 0
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def __add__(self, other: WordErrors) -> WordErrors:
        return WordErrors(
            self.spoken + other.spoken,
            self.matched + other.matched,
            self.starts + other.starts,
            self.ends + other.ends,
        )

    @property
    def both(self) -> list[float]:
        return self.starts + self.ends

    @property
    def within_aims(self) -> bool:
        return quantile(self.both, 0.5) <= MEDIAN_S and quantile(self.both, 0.95) <= P95_S


def quantile(errors: Iterable[float], share: float) -> float:
    """A quantile of the absolute errors in seconds; infinite without errors."""
    sizes = np.abs(np.array(list(errors)))
    return float(np.quantile(sizes, share)) if len(sizes) else float("inf")


def compare(spoken: Sequence[TimedWord], written: Sequence[Word]) -> WordErrors:
    """Compare written words with the spoken words they are aligned with, in samples."""
    truth, heard = [fold(w.text) for w in spoken], [fold(w.text) for w in written]
    blocks = SequenceMatcher(None, truth, heard, autojunk=False).get_matching_blocks()
    pairs = [
        (spoken[block.a + n], written[block.b + n]) for block in blocks for n in range(block.size)
    ]
    return WordErrors(
        spoken=len(spoken),
        matched=len(pairs),
        starts=[(w.start_sample - s.start) / RATE for s, w in pairs if s.start is not None],
        ends=[(w.end_sample - s.end) / RATE for s, w in pairs if s.end is not None],
    )
