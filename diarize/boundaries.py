"""Boundaries of turns to 10 ms, from the level of the signal.

Voice activity detection works in steps of 32 ms and bridges short pauses inconsistently. Where
speech is clearly louder than the background, the level shows more exactly where speech starts, ends
and pauses; in noise turns are left unchanged. Knows nothing of voices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forescribe.asr.formats.transcript_parts import SAMPLE_RATE

from .diarizer import Samples
from .turns import Turns

FRAME = SAMPLE_RATE // 100
"""Samples, 10 ms; lengths below are in such frames."""

DIGITAL_DB = -100.0
"""Digital zeros, which say nothing about the noise of a room."""


@dataclass(frozen=True)
class LevelSettings:
    """Thresholds for speech. Tuned on mixtures of training voices, with docs/speakers.md's figures."""

    part: float = 0.3  # of the range from quiet to loud in dB; speech is above it
    contrast_db: float = 25.0  # between quiet and loud; with less, turns are left unchanged
    quiet: float = 10.0  # percentile of the level around a stretch
    loud: float = 95.0  # percentile of the level in the stretch
    around: int = 400
    margin: int = 20  # a boundary may move outwards by this much
    gap: int = 25  # stretches closer than this are treated as one
    pause: int = 30  # of one speaker, bridged up to this length
    shortest: int = 5


def refine_boundaries(turns: Turns, samples: Samples, levels: LevelSettings | None = None) -> Turns:
    """Move the boundaries of exclusive turns to where the level of `samples` [T] rises and falls.

    Speech between the turns of two speakers is assigned to the nearer turn. No speech is found far
    from any turn.
    """
    levels = levels or LevelSettings()
    frames = len(samples) // FRAME
    spans = np.array(
        [(t.start_sample // FRAME, -(-t.end_sample // FRAME)) for t in turns], np.int64
    ).reshape(-1, 2)
    spans = np.minimum(spans, frames)
    if not len(spans) or not frames:
        return turns
    spoken = _spoken(_decibels(samples), spans, levels)  # [F]
    # The boundary between two turns is in the middle of the gap.
    halves = (spans[:-1, 1] + spans[1:, 0]) / 2
    nearest = np.searchsorted(halves, np.arange(frames), side="right")  # [F] turns
    names = {speaker: number for number, speaker in enumerate(turns.speakers)}
    speaker_of = np.array([names[turn.speaker] for turn in turns])[nearest]
    return Turns.of(
        (start * FRAME, end * FRAME, speaker)
        for start, end, number in _bridged(np.where(spoken, speaker_of, -1), levels)
        for speaker in (turns.speakers[number],)
    )


def _decibels(samples: Samples) -> NDArray[np.float64]:
    """[T] -> [F]"""
    rows = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    power = np.einsum("ft,ft->f", rows, rows, dtype=np.float64) / FRAME
    return np.asarray(10 * np.log10(power + 1e-12))


def _spoken(
    level: NDArray[np.float64], spans: NDArray[np.int64], levels: LevelSettings
) -> NDArray[np.bool_]:
    """Mark speech [F] within and close to the stretches [N, 2]."""
    found = np.zeros(len(level), bool)
    gaps = np.flatnonzero(spans[1:, 0] - spans[:-1, 1] > levels.gap) + 1
    for near in np.split(spans, gaps):
        start, end = int(near[0, 0]), int(near[-1, 1])
        if end - start < levels.shortest:
            continue
        surroundings = level[max(0, start - levels.around) : end + levels.around]
        surroundings = surroundings[surroundings > DIGITAL_DB]
        if not len(surroundings):
            continue
        quiet = float(np.percentile(surroundings, levels.quiet))
        loud = float(np.percentile(level[start:end], levels.loud))
        if loud - quiet < levels.contrast_db:
            for first, last in near:
                found[first:last] = True
            continue
        wide = slice(max(0, start - levels.margin), end + levels.margin)
        found[wide] |= level[wide] > quiet + levels.part * (loud - quiet)
    return found


def _bridged(speaker_of: NDArray[np.int64], levels: LevelSettings) -> list[tuple[int, int, int]]:
    """[F] speakers, -1 for none -> (start, end, speaker) with short pauses bridged."""
    edges = np.flatnonzero(np.diff(speaker_of)) + 1
    starts, ends = np.append(0, edges).tolist(), np.append(edges, len(speaker_of)).tolist()
    runs = [
        (s, e, int(speaker_of[s])) for s, e in zip(starts, ends, strict=True) if speaker_of[s] >= 0
    ]
    found: list[tuple[int, int, int]] = []
    for start, end, speaker in runs:
        if found and found[-1][2] == speaker and start - found[-1][1] <= levels.pause:
            found[-1] = found[-1][0], end, speaker
        else:
            found.append((start, end, speaker))
    return [run for run in found if run[1] - run[0] >= levels.shortest]


__all__ = ["LevelSettings", "refine_boundaries"]
