"""Channels as speakers: calls that were recorded with each speaker on a separate channel.

`ChannelTranscriber` splits a recording into one file per channel, transcribes every channel by itself and
merges the transcripts into one. It has the `transcribe` method of `Transcriber` and can replace one; the
channels of all recordings share its batch. The channel determines the speaker, so this module knows nothing
of voices.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import wave
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forescribe.asr.audio.containers import open_container
from forescribe.asr.audio.inputs import Input
from forescribe.asr.audio.opening import open_path
from forescribe.asr.audio.reading import LOUDEST, Resampler
from forescribe.asr.decode.options import Options
from forescribe.asr.decode.results import Hook, Outcome, Progress
from forescribe.asr.errors import AudioError, ForescribeError, UsageError, temporary_errors
from forescribe.asr.formats.files import RECORDING
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import (
    SAMPLE_RATE,
    Coverage,
    Segment,
    Span,
    State,
    Turn,
)

from .turns import Turns, anonymous

if TYPE_CHECKING:
    from forescribe.asr.decode.transcriber import Transcriber

GAP = SAMPLE_RATE // 2
"""Samples: a longer pause between two words of a channel ends its turn."""

STATES: tuple[State, ...] = ("silent", "failed", "decoded")
"""In increasing order of precedence where channels differ."""


class ChannelTranscriber:
    """The speakers are `Speaker A`, `Speaker B`, … by the number of their channel."""

    def __init__(self, transcriber: Transcriber) -> None:
        self.transcriber = transcriber

    @property
    def batch(self) -> int:
        """Windows that are decoded at a time."""
        return self.transcriber.batch

    def set_batch(self, size: int) -> None:
        """As of the transcriber."""
        self.transcriber.set_batch(size)

    def transcribe(
        self, sources: Iterable[Input], options: Options | None = None, hook: Hook | None = None
    ) -> Iterator[Outcome]:
        """Yield outcomes as they are finished. A recording with one channel fails."""
        calls: dict[str, _Call] = {}
        failed: deque[Outcome] = deque()

        with ExitStack() as ends:
            with temporary_errors():
                folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="forescribe-"))

            def channel_files() -> Iterator[str]:
                for number, source in enumerate(sources):
                    place = Path(folder) / str(number)
                    try:
                        with temporary_errors(folder):
                            place.mkdir()
                        call = _Call(
                            source, [str(path) for path in split_channels(_path(source), place)]
                        )
                    except ForescribeError as error:
                        shutil.rmtree(place, ignore_errors=True)  # its room is for the others
                        failed.append(Outcome(source, error=error))
                        continue
                    calls.update(dict.fromkeys(call.channels, call))
                    yield from call.channels

            def report(progress: Progress) -> None:
                assert hook is not None
                hook(replace(progress, source=calls[str(progress.source)].source))

            report_hook = None if hook is None else report
            for outcome in self.transcriber.transcribe(channel_files(), options, report_hook):
                call = calls.pop(outcome.name)
                call.done[outcome.name] = outcome
                if len(call.done) == len(call.channels):
                    shutil.rmtree(Path(outcome.name).parent, ignore_errors=True)
                    yield self._merge(call)
                while failed:
                    yield failed.popleft()
            yield from failed

    def _merge(self, call: _Call) -> Outcome:
        done = [call.done[channel] for channel in call.channels]
        wall = max(outcome.wall_s for outcome in done)
        error = next((outcome.error for outcome in done if outcome.error is not None), None)
        transcripts = [outcome.transcript for outcome in done if outcome.transcript is not None]
        if error is not None or len(transcripts) < len(done):
            return Outcome(call.source, error=error, wall_s=wall)
        whole = merge_channels(transcripts, [*map(anonymous, range(len(done)))])
        settings = {**whole.settings, RECORDING: Path(str(call.source)).stem}
        return Outcome(call.source, replace(whole, settings=settings), wall_s=wall)


def split_channels(source: Path, folder: Path) -> list[Path]:
    """Write each channel as a 16 kHz WAV file, `<name>.channel-<n>.wav`, to `folder`.

    Raises UsageError for a mono recording, in which every speaker would be the same, OutputError where the
    files cannot be written, and the errors of opening a recording.
    """
    name = str(source)
    with open_path(source, name) as file:
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
                            f"{name} has one channel: there is nothing to split; leave the option out"
                        )
                    paths = [folder / f"{source.stem}.channel-{n}.wav" for n in range(count)]
                    with temporary_errors(folder):
                        files = [_opened(path) for path in paths]
                if block.samples.shape[1] != len(files):
                    raise AudioError(f"{name}: its number of channels changes midway")
                with temporary_errors(folder):
                    if block.rate != rate:
                        _finish(files, filters)
                        rate, filters = block.rate, [Resampler(block.rate) for _ in files]
                    for n, (out, chosen) in enumerate(zip(files, filters, strict=True)):
                        _append(out, chosen.push(_sound(block.samples[:, n])))
            with temporary_errors(folder):
                _finish(files, filters)
        finally:
            reader.close()
            with temporary_errors(folder):
                for out in files:
                    out.close()
    if not paths:
        raise AudioError(f"{name}: no sound could be decoded")
    return paths


def merge_channels(transcripts: Sequence[Transcript], names: Sequence[str]) -> Transcript:
    """Merge the transcripts of all channels. Segments are sorted by start and carry the name of their
    channel. Turns are where a channel has words, or segments without words."""
    length = max((t.sample_count for t in transcripts), default=0)
    segments = [
        _spoken_by(segment, name)
        for transcript, name in zip(transcripts, names, strict=True)
        for segment in transcript.segments
    ]
    segments.sort(key=lambda segment: (segment.start_sample, segment.end_sample))
    first = transcripts[0]
    return replace(
        first,
        segments=tuple(replace(segment, id=n) for n, segment in enumerate(segments)),
        sample_count=length,
        coverage=_coverage([t.coverage for t in transcripts], length),
        warnings=tuple(dict.fromkeys(n for t in transcripts for n in t.warnings)),
        settings={**first.settings, "diarization": {"name": "channels", "speakers": list(names)}},
        diarized=True,
        turns=tuple(_turns(segments).clipped(length)),
    )


@dataclass(eq=False)
class _Call:
    """A recording whose channels are being transcribed."""

    source: Input
    channels: list[str]  # paths
    done: dict[str, Outcome] = field(default_factory=dict)


def _path(source: Input) -> Path:
    """Raises UsageError for a stream, as splitting channels needs a file."""
    if not isinstance(source, str | os.PathLike) or str(source) == "-":
        raise UsageError("channels can be split in a file only, not in a stream")
    return Path(source)


def _opened(path: Path) -> wave.Wave_write:
    out = wave.open(str(path), "wb")
    out.setparams((1, 2, SAMPLE_RATE, 0, "NONE", "not compressed"))
    return out


def _finish(files: Sequence[wave.Wave_write], filters: Sequence[Resampler]) -> None:
    for out, chosen in zip(files, filters, strict=False):  # before the first block there is none
        _append(out, chosen.finish())


def _sound(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Replace NaN, infinity and values out of range by zeros."""
    return np.ascontiguousarray(np.where(np.abs(samples) < LOUDEST, samples, 0), np.float32)


def _append(out: wave.Wave_write, samples: NDArray[np.float32]) -> None:
    out.writeframes((np.clip(samples, -1, 1) * 32767).round().astype("<i2").tobytes())


def _spoken_by(segment: Segment, name: str) -> Segment:
    own: dict[str, Any] = {"speaker": name, "speaker_confidence": 1.0}
    words = segment.words and tuple(replace(word, overlap=None, **own) for word in segment.words)
    return replace(segment, words=words, **own)


def _turns(segments: Sequence[Segment]) -> Turns:
    spans: list[Turn] = []
    for segment in segments:
        assert segment.speaker is not None
        for part in segment.words or (segment,):
            if part.end_sample > part.start_sample:
                spans.append(Turn(part.start_sample, part.end_sample, segment.speaker))
    return Turns(tuple(spans)).joined(GAP)


def _coverage(coverages: Sequence[Coverage], length: int) -> Coverage:
    """For each span, the state with the highest precedence among the channels; of silence the loudest. What
    has no words is the sum: a voice of one channel is missed whatever is said in another."""

    def rank(span: Span) -> tuple[int, float]:
        return STATES.index(span.state), -math.inf if span.level_db is None else span.level_db

    borders = {0, length, *(span.end_sample for coverage in coverages for span in coverage.spans)}
    found: list[Span] = []
    for start, end in pairwise(sorted(borders)):
        over = [s for c in coverages for s in c.spans if s.start_sample <= start < s.end_sample]
        best = replace(max(over, key=rank), start_sample=start, end_sample=end)
        last = replace(found[-1], end_sample=end) if found else best
        if last == replace(best, start_sample=last.start_sample):
            found[-1:] = [last]
        else:
            found.append(best)
    wordless = [c.wordless_samples for c in coverages if c.wordless_samples is not None]
    return Coverage(tuple(found), sum(wordless) if len(wordless) == len(coverages) else None)
