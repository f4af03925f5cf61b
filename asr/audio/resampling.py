"""Resampling to 16 kHz, block by block, with the same result as one call for the whole recording.

torchaudio's resampler is a filter of finite width: a block with enough samples of its neighbours yields
exactly the samples that the whole recording would yield. Knows nothing of files.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..formats.transcript_parts import SAMPLE_RATE

Samples = NDArray[np.float32]

FILTER_WIDTH = 6
ROLLOFF = 0.99
"""torchaudio's defaults: zero crossings on each side, and the cut-off frequency as a fraction of the
Nyquist frequency."""

MAX_KERNEL = 1 << 22
"""Elements. A rate without a common divisor with 16,000 (44,099 Hz) would need a filter bank of
gigabytes."""

MIN_CALL = 1 << 16
"""The minimum number of samples per call of the filter."""


class Resampler(Protocol):
    """Converts mono samples to 16 kHz: n samples become ceil(n * 16000 / rate)."""

    def push(self, samples: Samples) -> Samples:
        """Add samples; returns those that are ready, which may be none."""

    def finish(self) -> Samples:
        """Return the rest. The resampler cannot be used again."""


def resampler(rate: int) -> Resampler:
    """The resampler for a rate in Hz. Raises ValueError for a rate that is not positive."""
    if rate <= 0:
        raise ValueError(f"sample rate of {rate} Hz")
    if rate == SAMPLE_RATE:
        return _Same()
    return _Sinc(rate) if _kernel_elements(rate) <= MAX_KERNEL else _Soxr(rate)


def live_resampler(rate: int) -> Resampler:
    """As `resampler`, for audio that is still being spoken: nothing is held back but the few milliseconds of
    the filter. Its samples differ slightly from those of `resampler`."""
    if rate <= 0:
        raise ValueError(f"sample rate of {rate} Hz")
    return _Same() if rate == SAMPLE_RATE else _Soxr(rate)


class _Same:
    def push(self, samples: Samples) -> Samples:
        return samples

    def finish(self) -> Samples:
        return np.zeros(0, np.float32)


class _Sinc:
    """`torchaudio.functional.resample` over blocks.

    Its unit is a group: `orig` input samples become `new` output samples, with the same filters in each
    group. A group needs the samples within `width` of it, so `context` groups on both sides are kept.
    """

    def __init__(self, rate: int) -> None:
        self.orig, self.new = _ratio(rate)
        self.context = math.ceil(_width(rate) / self.orig) + 1
        self.buffer = np.zeros(0, np.float32)
        self.waiting: list[Samples] = []
        self.count = 0  # samples waiting
        self.lead = 0  # groups at the start of the buffer that were returned: they are context

    def push(self, samples: Samples) -> Samples:
        # The frames of a codec may last 20 ms; a call per frame would cost more than the filter itself.
        self.waiting.append(samples)
        self.count += len(samples)
        if self.count < MIN_CALL:
            return np.zeros(0, np.float32)
        groups = self._take() // self.orig
        ready = groups - self.context
        if ready <= self.lead:
            return np.zeros(0, np.float32)
        resampled = self._resample(self.buffer[: groups * self.orig])[
            self.lead * self.new : ready * self.new
        ]
        drop = max(0, ready - self.context)
        self.buffer = self.buffer[drop * self.orig :]
        self.lead = ready - drop
        return resampled

    def finish(self) -> Samples:
        self._take()
        return self._resample(self.buffer)[self.lead * self.new :]

    def _take(self) -> int:
        """Move the waiting samples into the buffer; returns its length."""
        self.buffer = np.concatenate([self.buffer, *self.waiting])
        self.waiting, self.count = [], 0
        return len(self.buffer)

    def _resample(self, samples: Samples) -> Samples:
        import torch
        from torchaudio.functional import resample

        if not len(samples):
            return samples
        given = resample(
            torch.from_numpy(samples),
            self.orig,
            self.new,
            lowpass_filter_width=FILTER_WIDTH,
            rolloff=ROLLOFF,
        )
        return np.asarray(given.numpy(), np.float32)


class _Soxr:
    """libsoxr, for live audio and rates that torchaudio cannot convert; same output length, another (better)
    filter."""

    def __init__(self, rate: int) -> None:
        import soxr

        self.rate = rate
        self.stream = soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32")
        self.taken = 0
        self.given = 0

    def push(self, samples: Samples) -> Samples:
        self.taken += len(samples)
        block = np.asarray(self.stream.resample_chunk(samples), np.float32)
        self.given += len(block)
        return block

    def finish(self) -> Samples:
        rest = np.asarray(
            self.stream.resample_chunk(np.zeros(0, np.float32), last=True), np.float32
        )
        due = max(0, -(-self.taken * SAMPLE_RATE // self.rate) - self.given)
        return np.pad(rest, (0, max(0, due - len(rest))))[:due]


def _ratio(rate: int) -> tuple[int, int]:
    divisor = math.gcd(rate, SAMPLE_RATE)
    return rate // divisor, SAMPLE_RATE // divisor


def _width(rate: int) -> int:
    orig, new = _ratio(rate)
    return math.ceil(FILTER_WIDTH * orig / (min(orig, new) * ROLLOFF))


def _kernel_elements(rate: int) -> int:
    orig, new = _ratio(rate)
    return new * (2 * _width(rate) + orig)
