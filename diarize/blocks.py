"""Long recordings: diarized in blocks of bounded memory, the voices of all blocks linked.

Clustering costs the square of the length, in time and in memory; ten hours at once would need 13 GB
for it. A block of half an hour needs a few hundred MB. Works on pieces as they come, so that a
recording need never be in memory whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from forescribe.asr.formats.transcript import SAMPLE_RATE, Notice

from .diarizer import Bounds, Diarization, Diarizer, Hook, Samples, Voice, ignore_progress
from .speakers.linking import link_voices
from .turns import Turns

BLOCK = 30 * 60 * SAMPLE_RATE
"""Samples. A recording of up to a quarter more stays whole: a short last block knows few voices."""

SLACK = BLOCK // 4


def split_into_blocks(
    pieces: Iterable[Samples], *, block: int = BLOCK, slack: int = SLACK
) -> Iterator[Samples]:
    """Pieces of any length as blocks of `block` samples; the last one has up to `slack` more."""
    held: list[Samples] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += len(piece)
        while count > block + slack:
            joined = np.concatenate(held)
            yield joined[:block]
            held, count = [joined[block:].copy()], count - block
    if count:
        yield np.concatenate(held)


def diarize_blocks(
    diarizer: Diarizer,
    blocks: Iterable[Samples],
    bounds: Bounds | None = None,
    hook: Hook = ignore_progress,
    *,
    sample_count: int | None = None,
) -> Diarization:
    """Who speaks when in a recording that comes in blocks, one after the other without a gap.

    `sample_count` is the length of the whole where it is known, for the hook's sake. A single block
    is the engine's own answer.
    """
    bounds = bounds or Bounds()
    found: list[Diarization] = []
    start = 0
    for block in blocks:
        several = bool(found) or (sample_count or 0) > len(block)
        # A block need not hold everybody, so only the upper bound is its own.
        own = Bounds(at_most=bounds.most) if several else bounds
        found.append(diarizer.diarize(block, own, _part(hook, start, len(block), sample_count)))
        start += len(block)
    if not found:
        return diarizer.diarize(np.zeros(0, np.float32), bounds, hook)
    return found[0] if len(found) == 1 else join_blocks(found, bounds)


def join_blocks(blocks: list[Diarization], bounds: Bounds) -> Diarization:
    """Diarizations of blocks that follow each other as one."""
    engine = blocks[0].engine
    voices = [(n, voice) for n, block in enumerate(blocks) for voice in _all(block)]
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


def _all(block: Diarization) -> list[Voice]:
    """A voice for every speaker, with a vector or without."""
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
    """One voice of several, weighted by how much was said."""
    voices = list(voices)
    total = sum((v.vector * max(1, v.samples) for v in voices if v.vector is not None), np.zeros(1))
    length = float(np.linalg.norm(total))
    vector = (total / length).astype(np.float32) if length > 0 else None
    return Voice(name, vector, sum(voice.samples for voice in voices))


def _chained(parts: list[Turns]) -> Turns:
    """Turns that a border between blocks has cut are one again."""
    return Turns(tuple(turn for part in parts for turn in part)).joined()


def _notices(blocks: list[Diarization], count: int, bounds: Bounds) -> tuple[Notice, ...]:
    # A block's own count says nothing about the whole.
    found = {n: None for block in blocks for n in block.warnings if n.code != "speaker_count"}
    return (*found, *bounds.notices(count))


def _part(hook: Hook, start: int, length: int, total: int | None) -> Hook:
    """A block's progress as a part of the whole's. Of a length that nobody knows, the first half is
    done when a block is: the hook may still cancel."""
    if total is None:
        return lambda step, done: hook(step, 0.5 * done)
    whole = max(total, start + length)

    def report(step: str, done: float) -> None:
        hook(step, (start + done * length) / whole)

    return report


__all__ = ["BLOCK", "diarize_blocks", "split_into_blocks", "join_blocks", "mean_voice"]
