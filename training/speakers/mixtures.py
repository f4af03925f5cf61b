"""Conversations mixed from single voices, with turns that are known to the sample.

Clips of read speech are cut into turns and placed one after the other, some with overlap. Speech is
determined from the level of the clean clips, so that the reference does not depend on the voice activity
detection under test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forescribe.diarize.turns import Turns

RATE = 16_000
FRAME = RATE // 100
QUIET, LOUD, PART = 10, 95, 1 / 3
"""Frames are speech above a third of the range from quiet to loud (percentiles of a clip, in dB), as
the noise of recordings differs too much for a fixed distance."""

BRIDGE = round(0.3 * RATE)
"""Pauses up to this length are part of a turn, as in manual annotation."""

Samples = NDArray[np.float32]


LEAST_CONTRAST_DB = 25.0
"""Required range from quiet to loud. With less (noise, or speech without pauses) the level does not
separate speech."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """A recording with known turns."""

    name: str
    samples: Samples
    turns: Turns


def usable(clip: Samples) -> bool:
    """Whether the level of a clip separates speech from pauses."""
    quiet, loud = np.percentile(_levels(clip), [QUIET, LOUD])
    return bool(loud - quiet >= LEAST_CONTRAST_DB)


def speech(clip: Samples) -> Turns:
    """Where a clean clip of one voice is loud enough to be speech."""
    level = _levels(clip)
    quiet, loud = np.percentile(level, [QUIET, LOUD])
    spoken = np.flatnonzero(level > quiet + PART * (loud - quiet))
    return Turns.of((f * FRAME, (f + 1) * FRAME, "one") for f in spoken.tolist()).joined(BRIDGE)


def _levels(clip: Samples) -> NDArray[np.float64]:
    """The level of frames of 10 ms, in dB."""
    frames = clip[: len(clip) // FRAME * FRAME].reshape(-1, FRAME)
    level: NDArray[np.float64] = 10 * np.log10(np.square(frames, dtype=np.float64).mean(1) + 1e-12)
    return level


def mix(
    name: str,
    clips: Mapping[str, Samples],
    rng: np.random.Generator,
    *,
    seconds: float = 120.0,
    overlapping: float = 0.1,
) -> Mixture:
    """Mix a conversation of all speakers in `clips`, with turns of 0.8 to 8 s in random order.

    A share `overlapping` of the turns begins 0.2 to 0.8 s early; the others follow a pause of 0.1 to 1 s.
    Clips are repeated as needed, from a random start. Every speaker has a turn.
    """
    audio = np.zeros(round(seconds * RATE), np.float32)
    spoken = {who: speech(clip) for who, clip in clips.items()}
    at = {who: int(rng.integers(len(clip))) for who, clip in clips.items()}
    found: list[tuple[int, int, str]] = []
    order: list[str] = []
    place, last = RATE // 2, ""
    while place < len(audio) - RATE:
        if not order:
            order = rng.permutation([who for who in clips]).tolist()
        who = order.pop()
        if who == last and len(clips) > 1:
            continue
        length = min(round(rng.uniform(0.8, 8.0) * RATE), len(audio) - place)
        begin = at[who] if at[who] + length <= len(clips[who]) else 0
        length = min(length, len(clips[who]) - begin)
        at[who] = begin + length
        audio[place : place + length] += clips[who][begin : begin + length]
        for turn in spoken[who]:
            start, end = max(turn.start_sample, begin), min(turn.end_sample, begin + length)
            if start < end:
                found.append((place + start - begin, place + end - begin, who))
        early = rng.random() < overlapping
        pause = -rng.uniform(0.2, 0.8) if early else rng.uniform(0.1, 1.0)
        place, last = max(RATE // 2, place + length + round(pause * RATE)), who
    return Mixture(name, np.clip(audio, -1, 1), Turns.of(found))


def mixtures(
    clips: Mapping[str, Samples], *, count: int = 10, seed: int = 0, seconds: float = 120.0
) -> list[Mixture]:
    """`count` conversations of two to five speakers, drawn from `clips`."""
    rng = np.random.default_rng(seed)
    names: Sequence[str] = sorted(clips)
    found = []
    for number in range(count):
        chosen = rng.choice(names, min(2 + number % 4, len(names)), replace=False).tolist()
        some = {who: clips[who] for who in chosen}
        found.append(mix(f"mixture-{number:02d}", some, rng, seconds=seconds))
    return found
