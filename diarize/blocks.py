"""Diarization of long recordings in blocks, with the voices of all blocks linked.

The time and memory of clustering grow with the square of the length: ten hours at once would need
13 GB, a block of half an hour needs a few hundred MB. The samples are read as a stream, so that a
recording is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from forescribe.asr.formats.transcript_parts import SAMPLE_RATE, Notice

from .diarizer import Bounds, Diarization, Diarizer, Hook, Samples, Voice, ignore_progress
from .speakers.linking import link_voices
from .turns import Turns

BLOCK = 30 * 60 * SAMPLE_RATE
"""Samples. A recording of up to a quarter more is one block: a short last block has few voices."""

SLACK = BLOCK // 4


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


def diarize_blocks(
    diarizer: Diarizer,
    blocks: Iterable[Samples],
    bounds: Bounds | None = None,
    hook: Hook = ignore_progress,
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
        done.append(diarizer.diarize(block, own, _part(hook, start, len(block), sample_count)))
        start += len(block)
    if not done:
        return diarizer.diarize(np.zeros(0, np.float32), bounds, hook)
    return done[0] if len(done) == 1 else join_blocks(done, bounds)


def join_blocks(blocks: list[Diarization], bounds: Bounds) -> Diarization:
    """Join the diarizations of consecutive blocks."""
    engine = blocks[0].engine
    voices = [(n, voice) for n, block in enumerate(blocks) for voice in _voices(block)]
    numbers = link_voices(
        voices,
        engine.thresholds.possible,
        least=bounds.least,
        most=bounds.most,
    )
    regular, exclusive = list[Turns](), list[Turns]()
    offset = 0
    for n, block in enumerate(blocks):
        own = zip(voices, numbers, strict=True)
        names = {v.speaker: str(number) for (place, v), number in own if place == n}
        regular.append(block.regular.renamed(names).shifted(offset))
        exclusive.append(block.exclusive.renamed(names).shifted(offset))
        offset += block.sample_count
    return Diarization.of(
        _chained(regular),
        _chained(exclusive),
        _means(voices, numbers),
        offset,
        engine,
        _notices(blocks, len(set(numbers)), bounds),
    )


def _voices(block: Diarization) -> list[Voice]:
    """One voice per speaker, with or without a vector."""
    known = {voice.speaker: voice for voice in block.voices}
    return [
        known.get(speaker) or Voice(speaker, None, block.exclusive.samples_of(speaker))
        for speaker in block.speakers
    ]


def _means(voices: list[tuple[int, Voice]], numbers: list[int]) -> tuple[Voice, ...]:
    found = []
    for number in sorted(set(numbers)):
        own = [voice for (_, voice), n in zip(voices, numbers, strict=True) if n == number]
        found.append(mean_voice(str(number), own))
    return tuple(found)


def mean_voice(name: str, voices: Iterable[Voice]) -> Voice:
    """The mean of several voices, weighted by their amount of speech."""
    voices = list(voices)
    total = sum((v.vector * max(1, v.samples) for v in voices if v.vector is not None), np.zeros(1))
    length = float(np.linalg.norm(total))
    vector = (total / length).astype(np.float32) if length > 0 else None
    return Voice(name, vector, sum(voice.samples for voice in voices))


def _chained(parts: list[Turns]) -> Turns:
    """Join turns that were cut at the boundary between two blocks."""
    return Turns(tuple(turn for part in parts for turn in part)).joined()


def _notices(blocks: list[Diarization], count: int, bounds: Bounds) -> tuple[Notice, ...]:
    # The number of speakers in a block says nothing about the recording.
    found = {n: None for block in blocks for n in block.warnings if n.code != "speaker_count"}
    return (*found, *bounds.notices(count))


def _part(hook: Hook, start: int, length: int, total: int | None) -> Hook:
    """Report a block's progress as part of the recording's. If the length is unknown, every block
    counts up to one half, so that the hook is called and can cancel."""
    if total is None:
        return lambda step, done: hook(step, 0.5 * done)
    whole = max(total, start + length)

    def report(step: str, done: float) -> None:
        hook(step, (start + done * length) / whole)

    return report


__all__ = ["BLOCK", "diarize_blocks", "split_into_blocks", "join_blocks", "mean_voice"]
