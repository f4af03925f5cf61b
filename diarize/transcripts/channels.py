"""Channels as speakers: a call that was recorded with each side on a channel of its own.

Who speaks is known from the channel, exactly; each side is transcribed by itself, both through one
engine, and the two transcripts become one. Knows nothing of voices.
"""

from __future__ import annotations

import wave
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forescribe.asr.audio.containers import open_container
from forescribe.asr.audio.reading import LOUDEST
from forescribe.asr.audio.resampling import Resampler, resampler
from forescribe.asr.errors import AudioError, UsageError
from forescribe.asr.formats.transcript import (
    SAMPLE_RATE,
    Coverage,
    Segment,
    Span,
    State,
    Transcript,
    Turn,
    Word,
)

from ..turns import Turns

GAP = SAMPLE_RATE // 2
"""Samples between two words of a side that do not end its turn."""

STATES: tuple[State, ...] = ("silent", "failed", "decoded")
"""From the least to the most that can be said of a stretch."""


def split(source: Path, folder: Path) -> list[Path]:
    """Each channel of a recording as a 16 kHz WAV file in `folder`, `<name>.channel-<n>.wav`.

    A mono recording is refused, since it would make everybody one speaker: UsageError. Raises what
    opening a recording raises.
    """
    name = str(source)
    with open(source, "rb") as file:
        reader = open_container(file, name)
        files: list[wave.Wave_write] = []
        try:
            paths: list[Path] = []
            filters: list[Resampler] = []
            rate = 0
            for block in reader.read():
                if not files:
                    count = block.samples.shape[1]
                    if count < 2:
                        raise UsageError(
                            f"{name} has one channel: nothing to split; leave the option"
                        )
                    paths = [folder / f"{source.stem}.channel-{n}.wav" for n in range(count)]
                    files = [_opened(path) for path in paths]
                if block.samples.shape[1] != len(files):
                    raise AudioError(f"{name}: its number of channels changes midway")
                if block.rate != rate:
                    _finish(files, filters)
                    rate, filters = block.rate, [resampler(block.rate) for _ in files]
                for n, (out, chosen) in enumerate(zip(files, filters, strict=True)):
                    _append(out, chosen.push(_sound(block.samples[:, n])))
            _finish(files, filters)
        finally:
            reader.close()
            for out in files:
                out.close()
    if not paths:
        raise AudioError(f"{name}: no sound could be decoded")
    return paths


def merged(sides: Sequence[Transcript], names: Sequence[str]) -> Transcript:
    """The transcripts of all channels as one, segments in the order of their starts, each with its
    side's name. Turns are where a side has words, or segments without words."""
    length = max((side.sample_count for side in sides), default=0)
    segments = [
        _spoken_by(segment, name)
        for side, name in zip(sides, names, strict=True)
        for segment in side.segments
    ]
    segments.sort(key=lambda segment: (segment.start_sample, segment.end_sample))
    first = sides[0]
    return replace(
        first,
        segments=tuple(replace(segment, id=n) for n, segment in enumerate(segments)),
        sample_count=length,
        coverage=_coverage([side.coverage for side in sides], length),
        warnings=tuple(dict.fromkeys(n for side in sides for n in side.warnings)),
        settings={**first.settings, "diarization": {"name": "channels", "speakers": list(names)}},
        diarized=True,
        turns=tuple(_turns(segments).clipped(length)),
    )


def _spoken_by(segment: Segment, name: str) -> Segment:
    def own(word: Word) -> Word:
        return replace(word, speaker=name, speaker_confidence=1.0, overlap=None)

    words = None if segment.words is None else tuple(own(word) for word in segment.words)
    return replace(segment, speaker=name, speaker_confidence=1.0, words=words)


def _turns(segments: Sequence[Segment]) -> Turns:
    spans: list[Turn] = []
    for segment in segments:
        assert segment.speaker is not None
        for part in segment.words or (segment,):
            if part.end_sample > part.start_sample:
                spans.append(Turn(part.start_sample, part.end_sample, segment.speaker))
    return Turns(tuple(spans)).joined(GAP)


def _coverage(sides: Sequence[Coverage], length: int) -> Coverage:
    """Of each stretch the most that any side can say."""
    borders = {0, length, *(span.end_sample for side in sides for span in side.spans)}
    found: list[Span] = []
    for start, end in pairwise(sorted(borders)):
        over = [s for side in sides for s in side.spans if s.start_sample <= start < s.end_sample]
        best = max(over, key=lambda span: STATES.index(span.state))
        last = found[-1] if found else None
        if last is not None and (last.state, last.reason) == (best.state, best.reason):
            found[-1] = replace(last, end_sample=end)
        else:
            found.append(replace(best, start_sample=start, end_sample=end))
    return Coverage(tuple(found))


def _opened(path: Path) -> wave.Wave_write:
    out = wave.open(str(path), "wb")
    out.setnchannels(1)
    out.setsampwidth(2)
    out.setframerate(SAMPLE_RATE)
    return out


def _finish(files: Sequence[wave.Wave_write], filters: Sequence[Resampler]) -> None:
    for out, chosen in zip(files, filters, strict=False):  # before the first block there is none
        _append(out, chosen.finish())


def _sound(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Without what is no sound: NaN, infinity, values beyond all scale."""
    return np.ascontiguousarray(np.where(np.abs(samples) < LOUDEST, samples, 0), np.float32)


def _append(out: wave.Wave_write, samples: NDArray[np.float32]) -> None:
    out.writeframes((np.clip(samples, -1, 1) * 32767).round().astype("<i2").tobytes())
