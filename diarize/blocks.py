"""Diarization of long recordings in blocks, with the voices of all blocks linked.

The time and memory of clustering grow with the square of the length: ten hours at once would need
13 GB, a block of half an hour needs a few hundred MB. The samples are read as a stream, so that a
recording is never in memory as a whole.

Voices are linked by their vectors. Those of one block are never joined, as an engine has distinguished them,
and neither are voices without a vector. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from forescribe.asr.formats.transcript_parts import SAMPLE_RATE

from .diarizer import (
    MOST_SPEAKERS,
    Bounds,
    Diarization,
    Diarizer,
    Samples,
    StageHook,
    Voice,
    ignore_progress,
)
from .turns import Turns

BLOCK = 30 * 60 * SAMPLE_RATE
"""Samples. A short last block would have few voices: see `SLACK`."""

SLACK = BLOCK // 4
"""Samples by which the last block may be longer."""


def diarize_blocks(
    diarizer: Diarizer,
    blocks: Iterable[Samples],
    bounds: Bounds | None = None,
    hook: StageHook = ignore_progress,
    *,
    sample_count: int | None = None,
) -> Diarization:
    """Diarize a recording that is given as consecutive blocks without gaps.

    `sample_count` is the length of the recording, if known; the hook needs it to report progress.
    For a single block the engine's result is returned unchanged.
    """
    bounds = bounds or Bounds()
    done: list[Diarization] = []
    start = 0
    for block in blocks:
        several = bool(done) or (sample_count or 0) > len(block)
        # A speaker may be missing from a block, so only the upper bound applies to it.
        own = Bounds(at_most=bounds.most) if several else bounds
        done.append(diarizer.diarize(block, own, _part(hook, start, len(block), sample_count or 0)))
        start += len(block)
    if not done:
        return diarizer.diarize(np.zeros(0, np.float32), bounds, hook)
    return done[0] if len(done) == 1 else join_blocks(done, bounds)


def split_into_blocks(
    pieces: Iterable[Samples], *, block: int = BLOCK, slack: int = SLACK
) -> Iterator[Samples]:
    """Yield blocks of `block` samples from pieces of any length; the last has up to `slack` more."""
    pending: list[Samples] = []
    count = 0
    for piece in pieces:
        pending.append(piece)
        count += len(piece)
        while count > block + slack:
            joined = np.concatenate(pending)
            yield joined[:block]
            pending, count = [joined[block:].copy()], count - block
    if count:
        yield np.concatenate(pending)


def join_blocks(blocks: list[Diarization], bounds: Bounds) -> Diarization:
    engine = blocks[0].engine
    voices = [(n, voice) for n, block in enumerate(blocks) for voice in _voices(block)]
    alike = engine.thresholds.possible
    numbers = link_voices(voices, alike, least=bounds.least, most=bounds.most)
    regular, exclusive = list[Turns](), list[Turns]()
    offset = 0
    for n, block in enumerate(blocks):
        own = zip(voices, numbers, strict=True)
        names = {v.speaker: str(number) for (place, v), number in own if place == n}
        regular.append(block.regular.renamed(names).shifted(offset))
        exclusive.append(block.exclusive.renamed(names).shifted(offset))
        offset += block.sample_count
    # The number of speakers in a block says nothing about the recording.
    found = {n: None for block in blocks for n in block.warnings if n.code != "speaker_count"}
    notices = (*found, *bounds.notices(len(set(numbers))))
    means = []
    for number in sorted(set(numbers)):
        own_voices = [v for (_, v), n in zip(voices, numbers, strict=True) if n == number]
        means.append(mean_voice(str(number), own_voices))
    return Diarization.of(
        _chained(regular), _chained(exclusive), tuple(means), offset, engine, notices
    )


def link_voices(
    voices: Sequence[tuple[Hashable, Voice]],
    alike: float,
    *,
    least: int = 1,
    most: int = MOST_SPEAKERS,
) -> list[int]:
    """Return the number of the person for each (place, voice), counted from 0 by first appearance.

    The two most similar persons are joined until no cosine reaches `alike`, then further while there
    are more than `most` persons, but never below `least`. Two voices of one place, which is a block,
    are never joined; therefore the bounds may be missed.
    """
    people = [
        _Person([n], voice.vector.astype(np.float64) * max(1, voice.samples), {place})
        for n, (place, voice) in enumerate(voices)
        if voice.vector is not None
    ]
    alone = [n for n, (_, voice) in enumerate(voices) if voice.vector is None]
    while len(people) > least:
        pair = _nearest(people)
        if pair is None or (pair[0] < alike and len(people) <= most):
            break
        _, one, other = pair
        one.members += other.members
        one.total = one.total + other.total
        one.places |= other.places
        people = [person for person in people if person is not other]
    groups = [person.members for person in people] + [[n] for n in alone]
    numbers = [0] * len(voices)
    for number, members in enumerate(sorted(groups, key=min)):
        for n in members:
            numbers[n] = number
    return numbers


def mean_voice(name: str, voices: Iterable[Voice]) -> Voice:
    """The mean of several voices, weighted by their amount of speech."""
    voices = list(voices)
    total = sum((v.vector * max(1, v.samples) for v in voices if v.vector is not None), np.zeros(1))
    length = float(np.linalg.norm(total))
    vector = (total / length).astype(np.float32) if length > 0 else None
    return Voice(name, vector, sum(voice.samples for voice in voices))


def _voices(block: Diarization) -> list[Voice]:
    """One voice per speaker, with or without a vector."""
    known = {voice.speaker: voice for voice in block.voices}
    return [
        known.get(speaker) or Voice(speaker, None, block.exclusive.samples_of(speaker))
        for speaker in block.speakers
    ]


def _chained(parts: list[Turns]) -> Turns:
    """Join turns that were cut at the boundary between two blocks."""
    return Turns(tuple(turn for part in parts for turn in part)).joined()


def _part(hook: StageHook, start: int, length: int, total: int) -> StageHook:
    """Report a block's progress as part of the recording's, or of what was read if that is longer."""
    whole = max(total, start + length)
    return lambda step, done: hook(step, (start + done * length) / whole)


@dataclass
class _Person:
    """The voices of one speaker and their sum, weighted by speech."""

    members: list[int]
    total: NDArray[np.float64]  # [D]; its direction is the mean voice
    places: set[Hashable]


def _nearest(people: Sequence[_Person]) -> tuple[float, _Person, _Person] | None:
    """The two most similar persons that may be joined, with their cosine."""
    if len(people) < 2:
        return None
    rows = np.stack(
        [person.total / max(float(np.linalg.norm(person.total)), 1e-9) for person in people]
    )
    cosines = rows @ rows.T
    pairs = [
        (float(cosines[a, b]), people[a], people[b])
        for a, b in combinations(range(len(people)), 2)
        if not people[a].places & people[b].places
    ]
    return max(pairs, key=lambda pair: pair[0], default=None)
