"""Borders of turns to 10 ms, by the level of the sound.

Voice activity says in steps of 32 ms that there is speech, and bridges short pauses or not as its
memory has it. Where speech stands out from its surroundings, level knows better where it begins,
ends and pauses; in noise it knows nothing, and turns stay as they were. Knows nothing of voices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forescribe.asr.formats.transcript import SAMPLE_RATE

from .diarizer import Samples
from .turns import Turns

FRAME = SAMPLE_RATE // 100
"""Samples, 10 ms; lengths below are in such frames."""

DIGITAL_DB = -100.0
"""Zeros that somebody has put there say nothing about a room's silence."""


@dataclass(frozen=True)
class LevelSettings:
    """What counts as speech. Tuned on mixtures of training voices, with docs/speakers.md's figures."""

    part: float = 0.3  # of the way from quiet to loud, in dB: above it is speech
    contrast_db: float = 25.0  # between quiet and loud; with less, level is not asked
    quiet: float = 10.0  # percentile of the surroundings
    loud: float = 95.0  # percentile of the stretch itself
    around: int = 400
    margin: int = 20  # by so much a border may move outwards
    apart: int = 25  # stretches that are closer are looked at together
    pause: int = 30  # of one speaker, bridged
    shortest: int = 5


def refine_boundaries(turns: Turns, samples: Samples, levels: LevelSettings | None = None) -> Turns:
    """Turns that do not overlap, with borders where the level of `samples` [T] rises and falls.

    What lies between two speakers' turns goes to the nearer one. No speech is found where no turn is
    near.
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
    # Half way between two turns the one ends and the other begins.
    halves = (spans[:-1, 1] + spans[1:, 0]) / 2
    nearest = np.searchsorted(halves, np.arange(frames), side="right")  # [F] turns
    names = {speaker: number for number, speaker in enumerate(turns.speakers)}
    whose = np.array([names[turn.speaker] for turn in turns])[nearest]
    return Turns.of(
        (start * FRAME, end * FRAME, speaker)
        for start, end, number in _bridged(np.where(spoken, whose, -1), levels)
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
    """[F] where there is speech, in and close to these stretches [N, 2]."""
    found = np.zeros(len(level), bool)
    gaps = np.flatnonzero(spans[1:, 0] - spans[:-1, 1] > levels.apart) + 1
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


def _bridged(whose: NDArray[np.int64], levels: LevelSettings) -> list[tuple[int, int, int]]:
    """[F] speakers, -1 for nobody -> (start, end, speaker), a speaker's short pauses bridged."""
    edges = np.flatnonzero(np.diff(whose)) + 1
    starts, ends = np.append(0, edges).tolist(), np.append(edges, len(whose)).tolist()
    runs = [(s, e, int(whose[s])) for s, e in zip(starts, ends, strict=True) if whose[s] >= 0]
    found: list[tuple[int, int, int]] = []
    for start, end, speaker in runs:
        if found and found[-1][2] == speaker and start - found[-1][1] <= levels.pause:
            found[-1] = found[-1][0], end, speaker
        else:
            found.append((start, end, speaker))
    return [run for run in found if run[1] - run[0] >= levels.shortest]


__all__ = ["LevelSettings", "refine_boundaries"]
