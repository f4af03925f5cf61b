"""Units of a transcript: integer samples at 16 kHz, and the seconds derived from them.

Knows the sample rate; nothing of transcripts.
"""

from __future__ import annotations

SAMPLE_RATE = 16_000
"""Hz. Whisper's only rate, and therefore the unit of every position in this package."""

SAMPLES_PER_SEEK = 160
"""Whisper's `seek` counts feature frames of 10 ms."""

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def seconds(samples: int) -> float:
    """Convert samples to seconds. `samples_at` returns exactly the same count for 17,000 years of
    audio."""
    return samples / SAMPLE_RATE


def samples_at(time_s: float) -> int:
    """Return the sample nearest to a time in seconds."""
    return round(time_s * SAMPLE_RATE)
