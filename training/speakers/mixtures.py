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
from scipy.signal import fftconvolve

from forescribe.diarize.turns import Turns

RATE = 16_000
FRAME = RATE // 100
QUIET, LOUD, PART = 10, 95, 1 / 3
"""Frames are speech above a third of the range from quiet to loud (percentiles of a clip, in dB), as
the noise of recordings differs too much for a fixed distance."""

BRIDGE = round(0.3 * RATE)
"""Pauses up to this length are part of a turn, as in manual annotation."""

Samples = NDArray[np.float32]


TAIL = RATE // 4
"""Samples of a room's sound after a turn."""

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


@dataclass(frozen=True)
class Manner:
    """How people take turns; times in seconds from and to."""

    turn: tuple[float, float] = (0.8, 8.0)
    pause: tuple[float, float] = (0.1, 1.0)
    overlapping: float = 0.1  # share of turns that begin early
    early: tuple[float, float] = (0.2, 0.8)
    listener: tuple[float, float] | None = None  # turns of all but the first, who answer the first


CALM = Manner()


def mix(
    name: str,
    clips: Mapping[str, Samples],
    rng: np.random.Generator,
    *,
    seconds: float = 120.0,
    manner: Manner = CALM,
    responses: Mapping[str, Samples] | None = None,
) -> Mixture:
    """Mix a conversation of all speakers in `clips`, who take turns in random order.

    Clips are repeated as needed, from a random start. Every speaker has a turn. `responses` are those of a
    room to each speaker.
    """
    audio = np.zeros(round(seconds * RATE), np.float32)
    spoken = {who: speech(clip) for who, clip in clips.items()}
    at = {who: int(rng.integers(len(clip))) for who, clip in clips.items()}
    names = list(clips)
    found: list[tuple[int, int, str]] = []
    order: list[str] = []
    place, last = RATE // 2, ""
    while place < len(audio) - RATE:
        span = manner.turn
        if manner.listener is not None:
            listeners = names[1:]
            who = names[0] if last != names[0] else listeners[int(rng.integers(len(listeners)))]
            span = manner.turn if who == names[0] else manner.listener
        else:
            order = order or rng.permutation(names).tolist()
            who = order.pop()
            if who == last and len(clips) > 1:
                continue
        length = min(round(rng.uniform(*span) * RATE), len(audio) - place)
        begin = at[who] if at[who] + length <= len(clips[who]) else 0
        if manner.listener is not None and who != names[0]:  # an answer is speech from its start
            starts = [turn.start_sample for turn in spoken[who] if turn.samples > length]
            begin = starts[int(rng.integers(len(starts)))] if starts else begin
        length = min(length, len(clips[who]) - begin)
        at[who] = begin + length
        part = clips[who][begin : begin + length]
        if responses is not None:
            part = fftconvolve(part, responses[who])[: length + TAIL].astype(np.float32)
        part = part[: len(audio) - place]
        audio[place : place + len(part)] += part
        found += _said(spoken[who], begin, length, place, who)
        place, last = max(RATE // 2, place + length + _gap(manner, rng)), who
    return Mixture(name, np.clip(audio, -1, 1), Turns.of(found))


def once(
    name: str,
    clips: Mapping[str, Samples],
    rng: np.random.Generator,
    manner: Manner = CALM,
) -> Mixture:
    """Mix a conversation in which each clip is said once, as far as turns allow."""
    audio = np.zeros(20 * RATE * len(clips), np.float32)
    spoken = {who: speech(clip) for who, clip in clips.items()}
    at = dict.fromkeys(clips, 0)
    found: list[tuple[int, int, str]] = []
    place, last = RATE // 2, ""
    while True:
        left = [w for w in clips if w != last and at[w] < len(clips[w]) - RATE // 2]
        if not left:
            return Mixture(name, np.clip(audio[: place + RATE], -1, 1), Turns.of(found))
        who = left[int(rng.integers(len(left)))]
        begin = at[who]
        length = min(round(rng.uniform(*manner.turn) * RATE), len(clips[who]) - begin)
        at[who] += length
        audio[place : place + length] += clips[who][begin : begin + length]
        found += _said(spoken[who], begin, length, place, who)
        place, last = max(RATE // 2, place + length + _gap(manner, rng)), who


def _said(
    spoken: Turns, begin: int, length: int, place: int, who: str
) -> list[tuple[int, int, str]]:
    """The speech of a part of a clip that is placed at `place`."""
    inside = (
        (max(turn.start_sample, begin), min(turn.end_sample, begin + length)) for turn in spoken
    )
    return [(place + a - begin, place + b - begin, who) for a, b in inside if a < b]


def _gap(manner: Manner, rng: np.random.Generator) -> int:
    """Samples to the next turn, negative in an overlap."""
    early = rng.random() < manner.overlapping
    return round((-rng.uniform(*manner.early) if early else rng.uniform(*manner.pause)) * RATE)


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
