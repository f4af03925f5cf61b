"""Diarization of long recordings in blocks, with the voices of all blocks linked.

The time and memory of clustering grow with the square of the length: ten hours at once would need
13 GB, a block of half an hour needs a few hundred MB. The samples are read as a stream, so that a
recording is never in memory as a whole.

Voices are linked by their vectors. Those of one block are never joined, as an engine has distinguished them,
and neither are voices without a vector. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np

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
from .engines.clustering import Floats, unit
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
    heard = [n for n, (_, voice) in enumerate(voices) if voice.vector is not None]
    groups, places = [[n] for n in heard], [voices[n][0] for n in heard]
    # Of each person the sum of vectors, weighted by speech: its direction is the mean voice.
    totals = np.array([_weighted(voices[n][1]) for n in heard])  # [P, D]
    apart = np.array([[one == other for one in places] for other in places])  # [P, P]
    while len(groups) > least:
        directions = unit(totals)
        pairs = np.triu(~apart, 1)
        cosines = np.where(pairs, directions @ directions.T, -np.inf)
        one, other = divmod(int(cosines.argmax()), len(groups))
        if not pairs.any() or (cosines[one, other] < alike and len(groups) <= most):
            break
        groups[one] += groups.pop(other)
        totals[one] += totals[other]
        apart[one] |= apart[other]
        apart[:, one] = apart[one]
        totals, apart = np.delete(totals, other, 0), np.delete(apart, other, 0)
        apart = np.delete(apart, other, 1)
    groups += [[n] for n, (_, voice) in enumerate(voices) if voice.vector is None]
    numbers = [0] * len(voices)
    for number, members in enumerate(sorted(groups, key=min)):
        for n in members:
            numbers[n] = number
    return numbers


def _weighted(voice: Voice) -> Floats:
    assert voice.vector is not None
    return voice.vector.astype(np.float64) * max(1, voice.samples)


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
