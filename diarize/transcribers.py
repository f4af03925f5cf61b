"""Transcribers whose transcripts say who spoke: with the words of another transcriber, or without words.

    transcriber = DiarizingTranscriber(transcriber, diarizer)
    for outcome in transcriber.transcribe(["call.mp3"]):
        print(outcome.transcript.segments[0].speaker)

A recording is decoded once. Diarization runs in its own thread while windows are transcribed
(`BackgroundDiarizer`): one recording after the other, with the samples that wait for it on disk, so a fast
transcription of ten hours needs no extra RAM. The result is the transcriber's text with speakers.

`SpeakerOnlyTranscriber` says who spoke when, and nothing else. Both have the `transcribe` method of
`Transcriber`, so that the same batch code runs all of them.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self, cast

import numpy as np

from forescribe.asr.audio.inputs import Input
from forescribe.asr.audio.reading import Open, Recording, open_audio
from forescribe.asr.decode.options import Hook, Options, Outcome, Progress
from forescribe.asr.errors import AudioError, ForescribeError, UsageError
from forescribe.asr.formats.files import RECORDING
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import (
    SAMPLE_RATE,
    Coverage,
    Json,
    Notice,
    Span,
    samples_at,
    seconds,
)
from forescribe.speculative.stats import Stats

from .attribution import attribute_speakers, without_speakers
from .blocks import BLOCK, SLACK, diarize_blocks, join_blocks, split_into_blocks
from .diarizer import Bounds, Diarization, Diarizer, Samples, StageHook, ignore_progress
from .known_speakers import KnownSpeaker, Match, name_known_speakers

SAMPLE_BYTES = np.dtype(np.float32).itemsize
"""Bytes of a sample."""

TOLERANCE = SAMPLE_RATE // 2
"""Samples by which decoders of one recording may differ."""

READ_BYTES = 1 << 30
"""Upper limit for one read; the system's own limit is 2 GB."""


class SupportsTranscribe(Protocol):
    """The part of `asr.decode.transcriber.Transcriber` that is used. `open` opens the recordings."""

    def transcribe(
        self,
        sources: Iterable[Any],
        options: Options | None = None,
        hook: Hook | None = None,
        *,
        open: Open = open_audio,
    ) -> Iterator[Outcome]: ...


class DiarizingTranscriber:
    """Adds speakers to transcripts. `known` speakers get their names where they are recognised with
    certainty."""

    def __init__(
        self,
        transcriber: SupportsTranscribe,
        diarizer: Diarizer,
        bounds: Bounds | None = None,
        known: Sequence[KnownSpeaker] = (),
    ) -> None:
        self.transcriber, self.diarizer = transcriber, diarizer
        self.bounds, self.known = bounds or Bounds(), tuple(known)

    def transcribe(
        self,
        sources: Iterable[Input],
        options: Options | None = None,
        hook: Hook | None = None,
        *,
        open: Open = open_audio,
    ) -> Iterator[Outcome]:
        """Yield outcomes as they are finished. `open` opens the recordings.

        A recording that cannot be diarized fails: without speakers its transcript would look as if
        no speaker had been recognised.
        """
        options = replace(options or Options(), words=True)
        started: dict[int, _Started] = {}
        pending: list[_Pending] = []
        with BackgroundDiarizer(self.diarizer, self.bounds) as background:

            def open_and_start(source: Input) -> Recording:
                recording = open(source)
                task = background.start()
                started[id(source)] = _Started(task, time.perf_counter())
                recording.tap = task.feed
                return recording

            try:
                for outcome in self.transcriber.transcribe(
                    sources, options, hook, open=open_and_start
                ):
                    own = started.pop(id(outcome.source), None)
                    if own is not None and outcome.transcript is not None:
                        pending.append(_Pending(outcome, own, own.task.finish()))
                    else:
                        if own is not None:
                            own.task.cancel()
                        yield outcome
                    for item in [item for item in pending if item.diarization.done()]:
                        pending.remove(item)
                        yield self._finish(item)
                while pending:
                    yield self._finish(pending.pop(0))
            finally:  # the caller may stop after any outcome
                for own in (*started.values(), *(item.started for item in pending)):
                    own.task.cancel()

    def _finish(self, pending: _Pending) -> Outcome:
        outcome = pending.outcome
        assert outcome.transcript is not None
        try:
            transcript = add_speakers(
                outcome.transcript,
                pending.diarization.result(),
                self.known,
                source=outcome.name,
            )
        except ForescribeError as error:
            return replace(outcome, transcript=None, error=error)
        except Exception as cause:  # a bug here or in the engine: the other recordings continue
            text = f"{outcome.name}: {type(cause).__name__} while diarizing: {cause}"
            failure = AudioError(text, code="internal_error")
            failure.__cause__ = cause
            return replace(outcome, transcript=None, error=failure)
        return replace(
            outcome, transcript=transcript, wall_s=time.perf_counter() - pending.started.at
        )


class SpeakerOnlyTranscriber:
    """Diarizes recordings. `known` speakers get their names where they are recognised with certainty.
    With `transcript`, which is that of the
    recordings, speakers are put on its words."""

    def __init__(
        self,
        diarizer: Diarizer,
        bounds: Bounds | None = None,
        known: Sequence[KnownSpeaker] = (),
        transcript: Transcript | None = None,
    ) -> None:
        self.diarizer, self.bounds = diarizer, bounds or Bounds()
        self.known = tuple(known)
        self.transcript = None if transcript is None else without_speakers(transcript)

    def transcribe(
        self, sources: Iterable[Input], options: Options | None = None, hook: Hook | None = None
    ) -> Iterator[Outcome]:
        """Yield outcomes in the order of `sources`; `options` are ignored."""
        for source in sources:
            started = time.perf_counter()
            try:
                transcript = self._transcript(source, hook)
            except ForescribeError as error:
                yield Outcome(source, error=error, wall_s=time.perf_counter() - started)
            except Exception as cause:  # a bug here or in the engine: the other recordings continue
                text = f"{Outcome(source).name}: {type(cause).__name__} while diarizing: {cause}"
                failure = AudioError(text, code="internal_error")
                failure.__cause__ = cause
                yield Outcome(source, error=failure, wall_s=time.perf_counter() - started)
            else:
                yield Outcome(source, transcript, wall_s=time.perf_counter() - started)

    def _transcript(self, source: Input, hook: Hook | None) -> Transcript:
        with open_audio(source) as recording:
            declared = recording.declared_s

            def report(step: str, done: float) -> None:
                if hook is not None:
                    hook(Progress(source, done * (declared or 0.0), declared, (), Stats()))

            samples = recording.blocks()
            if self.transcript is not None:
                samples = _of_length(samples, self.transcript.sample_count)
            diarization = diarize_blocks(
                self.diarizer,
                split_into_blocks(samples),
                self.bounds,
                report,
                sample_count=None if declared is None else samples_at(declared),
            )
            count = diarization.sample_count
            empty = Transcript(
                segments=(),
                sample_count=count,
                coverage=Coverage((Span(0, count, "decoded", "for voices only"),) if count else ()),
                warnings=recording.warnings,
            )
        return add_speakers(
            self.transcript or empty,
            diarization,
            self.known,
            source=Outcome(source).name,
        )


def add_speakers(
    transcript: Transcript,
    diarization: Diarization,
    known: Sequence[KnownSpeaker] = (),
    *,
    source: str = RECORDING,
) -> Transcript:
    """Add the diarization's speakers to every word, with warnings for uncertain matches.

    `source` is the recording's path.
    """
    diarization, matches = name_known_speakers(diarization, known)
    end = transcript.sample_count  # a transcript that is read may be a little shorter
    regular, exclusive = (t.clipped(end) for t in (diarization.regular, diarization.exclusive))
    attributed = attribute_speakers(transcript, regular, exclusive)
    details: dict[str, Json] = {
        **diarization.engine.to_dict(),
        "matches": [_match(m) for m in matches],
    }
    doubts = [_suggestion(match) for match in matches if not match.sure]
    return replace(
        attributed,
        warnings=(*attributed.warnings, *diarization.warnings, *doubts),
        settings={
            **attributed.settings,
            "diarization": details,
            RECORDING: Path(source).stem,
        },
    )


class BackgroundDiarizer:
    """An engine that runs in a separate thread, while the caller's does something else.

    with BackgroundDiarizer(diarizer) as background:
        task = background.start()
        for block in recording.blocks():
            task.feed(block)
            ...                          # the transcriber takes the same block
        diarization = task.finish().result()
    """

    def __init__(
        self,
        diarizer: Diarizer,
        bounds: Bounds | None = None,
        *,
        block: int = BLOCK,
        slack: int = SLACK,
    ) -> None:
        self.diarizer, self.bounds = diarizer, bounds or Bounds()
        self.block, self.slack = block, slack
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="diarize")
        self._files: list[BinaryIO] = []

    def start(self, hook: StageHook = ignore_progress) -> DiarizationTask:
        """Begin a new recording. Several may be open at a time."""
        file = cast(BinaryIO, tempfile.TemporaryFile())
        self._files = [known for known in self._files if not known.closed] + [file]
        return DiarizationTask(self, self._worker, file, hook)

    def close(self) -> None:
        """Wait for the current block and drop those that have not begun."""
        self._worker.shutdown(cancel_futures=True)
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class DiarizationTask:
    """The diarization of one recording. `feed` its samples in order, then `finish` or `cancel`."""

    def __init__(
        self,
        background: BackgroundDiarizer,
        worker: ThreadPoolExecutor,
        file: BinaryIO,
        hook: StageHook,
    ) -> None:
        self.background, self.hook = background, hook
        self._worker, self._file = worker, file
        self._written = self._submitted = 0  # samples
        self._blocks: list[Future[Diarization]] = []
        self._cancelled = False

    def feed(self, samples: Samples) -> None:
        """Add the next samples [T]. A block is submitted once it is certain not to be the last."""
        if self._cancelled:
            return
        self._file.write(np.ascontiguousarray(samples, np.float32).tobytes())
        self._written += len(samples)
        while self._written - self._submitted > self.background.block + self.background.slack:
            self._submit(self.background.block, Bounds(at_most=self.background.bounds.most))

    def finish(self) -> Future[Diarization]:
        """Return the result as a future. It raises what the engine or the hook raised."""
        whole = not self._blocks
        bounds = self.background.bounds
        if whole or self._written > self._submitted:
            rest = self._written - self._submitted
            self._submit(rest, bounds if whole else Bounds(at_most=bounds.most))
        return self._worker.submit(self._join)

    def cancel(self) -> None:
        """Stop the work on this recording, because it failed elsewhere."""
        self._cancelled = True
        for block in self._blocks:
            block.cancel()
        self._worker.submit(self._file.close)  # after the block that may be reading it

    def _submit(self, length: int, bounds: Bounds) -> None:
        self._file.flush()
        start, self._submitted = self._submitted, self._submitted + length
        self._blocks.append(self._worker.submit(self._diarize, start, length, bounds))

    def _diarize(self, start: int, length: int, bounds: Bounds) -> Diarization:
        self._report("waiting", 0.0)  # raises if the task was cancelled in the meantime
        samples = _read(self._file.fileno(), start, length)
        return self.background.diarizer.diarize(samples, bounds, self._report)

    def _report(self, step: str, done: float) -> None:
        if self._cancelled:
            raise CancelledError
        self.hook(step, done)

    def _join(self) -> Diarization:
        """Runs after the blocks in the only thread, so all of them are done."""
        with self._file:
            done = [block.result(timeout=0) for block in self._blocks]
        return done[0] if len(done) == 1 else join_blocks(done, self.background.bounds)


@dataclass(frozen=True, eq=False)
class _Started:
    """A recording that is being read."""

    task: DiarizationTask
    at: float  # seconds, time.perf_counter()


@dataclass(frozen=True, eq=False)
class _Pending:
    """A transcript whose diarization is not finished."""

    outcome: Outcome
    started: _Started
    diarization: Future[Diarization]


def _of_length(blocks: Iterable[Samples], sample_count: int) -> Iterator[Samples]:
    """Yield the blocks. Raises UsageError if together they are not as long as the transcript."""
    count = 0
    for block in blocks:
        count += len(block)
        if count <= sample_count + TOLERANCE:
            yield block
    if abs(count - sample_count) > TOLERANCE:
        raise UsageError(
            f"the recording has {seconds(count):.1f} s and the transcript {seconds(sample_count):.1f} s: "
            "give the recording that was transcribed"
        )


def _match(match: Match) -> Json:
    score = round(match.score, 3)
    return {"speaker": match.speaker, "name": match.name, "score": score, "sure": match.sure}


def _suggestion(match: Match) -> Notice:
    text = f"{match.speaker} may be {match.name} (similarity {match.score:.2f}); not renamed"
    return Notice("speaker_suggestion", text)


def _read(descriptor: int, start: int, count: int) -> Samples:
    """Read by position, as the other thread may be writing at the end of the file."""
    samples = np.empty(count, np.float32)
    rest, at = samples.data.cast("B"), start * SAMPLE_BYTES
    while rest:
        size = os.preadv(descriptor, [rest[:READ_BYTES]], at)
        assert size, "the temporary file is shorter than what was written to it"
        rest, at = rest[size:], at + size
    return samples
