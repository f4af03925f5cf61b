"""When somebody speaks, in audio that is still arriving.

`Voice` says of each stretch of audio whether a voice is in it. `TurnDetection` says what a turn is, as
OpenAI's `server_vad` and `semantic_vad` do: it begins `prefix_s` before a voice, and ends when there was
none for `silence_s`; with an `eagerness`, later where the words so far do not end a sentence. Positions are
samples since the stream began. Knows nothing of words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..errors import UsageError
from ..formats.transcript_parts import SAMPLE_RATE
from ..segment.vad import FRAME, Detector
from ..segment.windows import Samples

TOGETHER = 8
"""Frames that are judged at a time, 256 ms: the detector amplifies quiet stretches, and single frames of
noise would become loud."""

STEP = TOGETHER * FRAME

Eagerness = Literal["low", "medium", "high", "auto"]

PATIENCE_S: dict[Eagerness, float] = {"low": 8.0, "medium": 4.0, "high": 2.0, "auto": 4.0}
"""How long a turn waits for the rest of a sentence (OpenAI's figures for semantic_vad)."""


@dataclass(frozen=True)
class TurnDetection:
    """How turns are found. `eagerness` None ends a turn after `silence_s`, whatever was said; else it waits
    as long as `PATIENCE_S` says for the rest of a sentence. Raises UsageError for impossible values."""

    threshold: float = 0.5
    prefix_s: float = 0.3
    silence_s: float = 0.5
    eagerness: Eagerness | None = None

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UsageError(f"threshold is {self.threshold}; it must be above 0, up to 1")
        for name in ("prefix_s", "silence_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value <= 30):
                raise UsageError(f"{name} is {value}; it must be from 0 to 30 seconds")
        if self.eagerness is not None and self.eagerness not in PATIENCE_S:
            known = ", ".join(PATIENCE_S)
            raise UsageError(f"unknown eagerness {self.eagerness!r}; known: {known}")

    @property
    def longest_silence_s(self) -> float:
        """The silence after which a turn ends in any case."""
        if self.eagerness is None:
            return self.silence_s
        return max(self.silence_s, PATIENCE_S[self.eagerness])


class Voice:
    """Finds the voice in a stream, `STEP` samples at a time."""

    def __init__(self, detector: Detector, threshold: float) -> None:
        self._stream = detector.stream()
        self.threshold = threshold
        self.position = 0  # samples that were judged
        self.last_voice = 0  # where the last of them ends

    def push(self, samples: Samples) -> tuple[int, int] | None:
        """Judge the next samples, `STEP` of them or the last ones; the first and the last place with a voice
        in them, None without one. NaN counts as a voice, so that no words are lost."""
        whole = np.pad(samples, (0, -len(samples) % FRAME))
        voiced = ~(self._stream.probabilities(whole) < self.threshold)
        begin, frames = self.position, np.flatnonzero(voiced)
        self.position += len(samples)
        if not len(frames):
            return None
        self.last_voice = min(self.position, begin + (int(frames[-1]) + 1) * FRAME)
        return begin + int(frames[0]) * FRAME, self.last_voice

    @property
    def silence_s(self) -> float:
        """Seconds since the last voice."""
        return (self.position - self.last_voice) / SAMPLE_RATE


class Steps:
    """Cuts arriving samples into steps of `STEP`; `rest` waits for more."""

    def __init__(self) -> None:
        self.rest = np.zeros(0, np.float32)

    def push(self, samples: Samples) -> Iterator[Samples]:
        joined = np.concatenate([self.rest, samples])
        whole = len(joined) - len(joined) % STEP
        self.rest = joined[whole:].copy()
        for at in range(0, whole, STEP):
            yield joined[at : at + STEP]

    def last(self) -> Samples:
        """What is left."""
        rest, self.rest = self.rest, np.zeros(0, np.float32)
        return rest
