"""Errors of turns and of the speakers of words: DER, JER, counts, and wrong words.

DER = (missed + false alarm + confusion) / reference speech, overlap counted for each speaker. "Full"
has no collar and scores overlap; "fair" leaves out 0.25 s on both sides of each boundary, which is
`collar=0.5` for pyannote.metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from forescribe.asr.formats.transcript_parts import Word, seconds
from forescribe.diarize.turns import Turns


@dataclass
class Errors:
    """Errors pooled over recordings, weighted by speech."""

    speech_s: float = 0.0
    missed_s: float = 0.0
    false_s: float = 0.0
    confused_s: float = 0.0
    fair_speech_s: float = 0.0
    fair_error_s: float = 0.0
    jaccard: list[float] = field(default_factory=list)
    counted: list[int] = field(
        default_factory=list
    )  # found minus true number of speakers, by recording

    def __add__(self, other: Errors) -> Errors:
        return Errors(*(getattr(self, n) + getattr(other, n) for n in vars(self)))

    @property
    def der(self) -> float:
        return (self.missed_s + self.false_s + self.confused_s) / max(self.speech_s, 1e-9)

    @property
    def fair(self) -> float:
        return self.fair_error_s / max(self.fair_speech_s, 1e-9)

    @property
    def confusion(self) -> float:
        return self.confused_s / max(self.speech_s, 1e-9)

    @property
    def jer(self) -> float:
        return float(np.mean(self.jaccard)) if self.jaccard else 0.0

    @property
    def right(self) -> float:
        """Share of recordings with the right number of speakers."""
        return float(np.mean([c == 0 for c in self.counted])) if self.counted else 0.0

    @property
    def off_by(self) -> float:
        """Mean error of the number of speakers."""
        return float(np.mean(np.abs(self.counted))) if self.counted else 0.0


def turn_errors(reference: Turns, found: Turns, sample_count: int) -> Errors:
    """Score one whole recording."""
    from pyannote.core import Segment, Timeline
    from pyannote.metrics.diarization import DiarizationErrorRate, JaccardErrorRate

    truth, answer = annotation(reference), annotation(found)
    everything = Timeline([Segment(0, seconds(sample_count))])
    full: dict[str, Any] = DiarizationErrorRate(collar=0.0, skip_overlap=False)(
        truth, answer, uem=everything, detailed=True
    )
    fair: dict[str, Any] = DiarizationErrorRate(collar=0.5, skip_overlap=False)(
        truth, answer, uem=everything, detailed=True
    )
    jer = float(JaccardErrorRate()(truth, answer, uem=everything)) if len(reference) else 0.0
    return Errors(
        full["total"],
        full["missed detection"],
        full["false alarm"],
        full["confusion"],
        fair["total"],
        fair["missed detection"] + fair["false alarm"] + fair["confusion"],
        [jer],
        [len(found.speakers) - len(reference.speakers)],
    )


def annotation(turns: Turns) -> Any:
    """Convert to pyannote's class, with a track for every turn, as turns may overlap."""
    from pyannote.core import Annotation, Segment

    made = Annotation(uri="recording")
    for track, turn in enumerate(turns):
        made[Segment(turn.start, turn.end), track] = turn.speaker
    return made


def wrong_words(reference: Sequence[Word], found: Sequence[str | None]) -> int:
    """The number of words with a wrong speaker under the best one-to-one mapping of names."""
    pairs = Counter(
        (word.speaker, who) for word, who in zip(reference, found, strict=True) if who is not None
    )
    true = sorted({word.speaker or "" for word in reference})
    heard = sorted({who for who in found if who is not None})
    table = np.array([[pairs[t, h] for h in heard] for t in true]).reshape(len(true), len(heard))
    rows, columns = linear_sum_assignment(table, maximize=True)
    return len(reference) - int(table[rows, columns].sum())
