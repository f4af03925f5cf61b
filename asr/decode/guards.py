"""`Guards`: whether a window's answer is kept, decoded again at a higher temperature, or silence.

Whisper's own rules (Radford et al. 2022, section 4.5; openai/whisper `transcribe.py`), applied to each window
separately, so that they work for windows decoded in parallel: only a window that fails is queued again. NaN
counts as failure, because a comparison with NaN would silently disable a guard. Knows nothing of models.
Import is light.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from ..errors import UsageError


@dataclass(frozen=True)
class Guards:
    """Thresholds; None disables one. Raises UsageError for invalid values.

    An answer fails if its text compresses by more than `compression_ratio` (it repeats itself) or its
    mean log-probability is below `logprob`. It is silence if the no-speech probability exceeds
    `no_speech` while the answer is improbable. `temperatures` are tried in order.
    """

    compression_ratio: float | None = 2.4
    logprob: float | None = -1.0
    no_speech: float | None = 0.6
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)

    def __post_init__(self) -> None:
        rising = list(self.temperatures) == sorted(set(self.temperatures))
        if not (self.temperatures and rising and all(0 <= t < math.inf for t in self.temperatures)):
            text = f"temperatures are {self.temperatures}; give one or more, from 0 up, that rise"
            raise UsageError(text)
        # Beyond these bounds every answer would fail, and NaN would disable the guard.
        ratio, logprob, no_speech = self.compression_ratio, self.logprob, self.no_speech
        if ratio is not None and not ratio > 0:
            raise UsageError(f"compression_ratio is {ratio}; it must be above 0, or None")
        if logprob is not None and not logprob <= 0:
            raise UsageError(f"logprob is {logprob}; it must be 0 or less, or None")
        if no_speech is not None and not 0 <= no_speech <= 1:
            raise UsageError(f"no_speech is {no_speech}; it must be from 0 to 1, or None")

    def judge(
        self,
        *,
        compression_ratio: float,
        mean_logprob: float,
        no_speech_prob: float,
        heard: bool = True,
    ) -> tuple[Judgement, str | None]:
        """Judge an answer; the reason is None where it is kept. Unless a voice was `heard` in its window, the
        no-speech probability decides alone."""
        if any(map(math.isnan, (compression_ratio, mean_logprob, no_speech_prob))):
            return Judgement.RETRY, "the model's numbers are not finite"
        improbable = self.logprob is not None and mean_logprob < self.logprob
        likely_silent = self.no_speech is not None and no_speech_prob > self.no_speech
        # openai/whisper: a window that is improbable and likely silent is skipped, even if it repeats.
        if likely_silent and (improbable or self.logprob is None or not heard):
            return Judgement.SILENCE, f"no speech (probability {no_speech_prob:.2f})"
        if self.compression_ratio is not None and compression_ratio > self.compression_ratio:
            return Judgement.RETRY, f"repeats itself (compression ratio {compression_ratio:.2f})"
        if improbable:
            return Judgement.RETRY, f"improbable (mean log-probability {mean_logprob:.2f})"
        return Judgement.KEEP, None

    def rank(self, *, compression_ratio: float, mean_logprob: float) -> tuple[bool, float]:
        """Of answers that were all rejected the one of the highest rank is kept: those that do not repeat
        themselves first, then by mean log-probability (SYSTRAN/faster-whisper `generate_with_fallback`;
        openai/whisper keeps the last one)."""
        if math.isnan(mean_logprob):
            return False, -math.inf
        repeats = self.compression_ratio is not None and compression_ratio > self.compression_ratio
        return not repeats, mean_logprob

    def next_temperature(self, temperature: float) -> float | None:
        """The temperature to try after this one; None after the last."""
        return next((t for t in self.temperatures if t > temperature + 1e-9), None)


class Judgement(Enum):
    """What to do with an answer."""

    KEEP = "keep"
    RETRY = "retry"
    SILENCE = "silence"
