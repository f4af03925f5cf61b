"""Who speaks in a recording: while it is transcribed, on its transcript, or without words.

A recording is decoded once. Diarization runs in its own thread while windows are transcribed
(`SpeakerFinder.begin`): one recording after the other, with the samples that wait for it on disk, so a fast
transcription of ten hours needs no extra RAM. The result is the transcriber's text with speakers.

`SpeakerOnlyTranscriber` says who spoke when, and nothing else; it has the `transcribe` method of
`Transcriber`, so that the same batch code runs both.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import filterfalse
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from forescribe.asr.audio.inputs import WIDTH, Input
from forescribe.asr.audio.opening import write_all
from forescribe.asr.audio.reading import open_audio
from forescribe.asr.decode.options import Options
from forescribe.asr.decode.recording import fault
from forescribe.asr.decode.results import Hook, Outcome, Progress
from forescribe.asr.errors import UsageError, temporary_errors
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
from forescribe.speculative.requests import Stats

from .attribution import attribute_speakers, without_speakers
from .blocks import BLOCK, SLACK, diarize_blocks, join_blocks, split_into_blocks
from .diarizer import Bounds, Diarization, Diarizer, Samples, StageHook, ignore_progress
from .known_speakers import KnownSpeaker, name_known_speakers

TOLERANCE = SAMPLE_RATE // 2
"""Samples by which decoders of one recording may differ."""


@dataclass(frozen=True)
class SpeakerFinder:
    """An engine that runs in a thread of its own, while the caller's does something else: for
    `Transcriber.with_speakers`, or by hand. `known` speakers get their names where they are recognised with
    certainty."""

    diarizer: Diarizer
    bounds: Bounds = field(default_factory=Bounds)
    known: Sequence[KnownSpeaker] = ()
    block: int = BLOCK
    slack: int = SLACK

    @contextmanager
    def begin(self) -> Iterator[Callable[..., DiarizationTask]]:
        """The thread of a call. What is returned begins with a recording, and may be given a hook; several
        recordings may be open at a time. The end waits for the current block and drops those that have not
        begun."""
        worker = ThreadPoolExecutor(1, thread_name_prefix="diarize")
        tasks: list[DiarizationTask] = []

        def start(hook: StageHook = ignore_progress) -> DiarizationTask:
            task = DiarizationTask(self, worker, hook)
            tasks[:] = [*filterfalse(attrgetter("closed"), tasks), task]
            return task

        try:
            yield start
        finally:
            worker.shutdown(cancel_futures=True)
            for task in tasks:
                task.close()


class SpeakerOnlyTranscriber:
    """Diarizes recordings. `known` speakers get their names where they are recognised with certainty.
    With `transcript`, which is that of the recordings, speakers are put on its words."""

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
        self.batch = 1

    def set_batch(self, size: int) -> None:
        """Recordings are diarized one by one."""

    def transcribe(
        self, sources: Iterable[Input], options: Options | None = None, hook: Hook | None = None
    ) -> Iterator[Outcome]:
        """Yield outcomes in the order of `sources`; `options` are ignored."""
        for source in sources:
            started, outcome = time.perf_counter(), Outcome(source)
            try:
                outcome = replace(outcome, transcript=self._transcript(source, hook))
            except Exception as cause:  # also a bug of the engine: the other recordings continue
                error = fault(f"{outcome.name}: finding its speakers", cause)
                outcome = replace(outcome, error=error)
            yield replace(outcome, wall_s=time.perf_counter() - started)

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
        whole, name = self.transcript or empty, Outcome(source).name
        return add_speakers(whole, diarization, self.known, source=name)


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
    matches, doubts = list[Json](), list[Notice]()
    if known:
        diarization, found = name_known_speakers(diarization, known)
        for m in found:
            matches.append(asdict(m) | {"score": round(m.score, 3)})
            if not m.sure:
                text = f"{m.speaker} may be {m.name} (similarity {m.score:.2f}); not renamed"
                doubts.append(Notice("speaker_suggestion", text))
    end = transcript.sample_count  # a transcript that is read may be a little shorter
    attributed = attribute_speakers(
        transcript, diarization.regular.clipped(end), diarization.exclusive.clipped(end)
    )
    return replace(
        attributed,
        warnings=(*attributed.warnings, *diarization.warnings, *doubts),
        settings={
            **attributed.settings,
            "diarization": {**diarization.engine.to_dict(), "matches": matches},
            RECORDING: Path(source).stem,
        },
    )


class DiarizationTask:
    """The diarization of one recording. `feed` its samples in order, then `finish` or `cancel`. Its temporary
    file is opened by `feed`, so that a full disk costs this recording and no other."""

    def __init__(self, finder: SpeakerFinder, worker: ThreadPoolExecutor, hook: StageHook) -> None:
        self.finder, self.worker, self.hook = finder, worker, hook
        self.closed = self._cancelled = False
        self._file: BinaryIO | None = None
        self._written = self._submitted = 0  # samples
        self._blocks: list[Future[Diarization]] = []

    def feed(self, samples: Samples) -> None:
        """Add the next samples [T]. A block is submitted once it is certain not to be the last. Raises
        OutputError where they cannot be written."""
        if self._cancelled:
            return
        with temporary_errors():
            if self._file is None:
                self._file = cast(BinaryIO, tempfile.TemporaryFile(buffering=0))
            write_all(self._file, np.ascontiguousarray(samples, np.float32))
        self._written += len(samples)
        while self._written - self._submitted > self.finder.block + self.finder.slack:
            self._submit(self.finder.block, Bounds(at_most=self.finder.bounds.most))

    def finish(self, transcript: Transcript, source: str = RECORDING) -> Future[Transcript]:
        """The transcript of the recording at the path `source`, with speakers. The future raises what the
        engine or the hook raised."""
        bounds, rest = self.finder.bounds, self._written - self._submitted
        if not self._blocks:
            self._submit(rest, bounds)
        elif rest:
            self._submit(rest, Bounds(at_most=bounds.most))
        return self.worker.submit(self._add, transcript, source)

    def cancel(self) -> None:
        """Stop the work on this recording, because it failed elsewhere."""
        self._cancelled = True
        for block in self._blocks:
            block.cancel()
        self.worker.submit(self.close)  # after the block that may be reading it

    def close(self) -> None:
        """Drop the samples."""
        self.closed = True
        if self._file is not None:
            self._file.close()

    def _submit(self, length: int, bounds: Bounds) -> None:
        start, self._submitted = self._submitted, self._submitted + length
        self._blocks.append(self.worker.submit(self._diarize, start, length, bounds))

    def _diarize(self, start: int, length: int, bounds: Bounds) -> Diarization:
        self._report("waiting", 0.0)  # raises if the task was cancelled in the meantime
        samples = np.empty(length, np.float32)
        if length:  # by position, as the other thread may be writing at the end of the file
            assert self._file is not None
            read = os.preadv(self._file.fileno(), [samples.data], start * WIDTH)
            assert read == samples.nbytes, "the file is shorter than what was written to it"
        return self.finder.diarizer.diarize(samples, bounds, self._report)

    def _report(self, step: str, done: float) -> None:
        if self._cancelled:
            raise CancelledError
        self.hook(step, done)

    def _add(self, transcript: Transcript, source: str) -> Transcript:
        """Runs after the blocks in the only thread, so all of them are done."""
        with closing(self):
            done = [block.result(timeout=0) for block in self._blocks]
        whole = done[0] if len(done) == 1 else join_blocks(done, self.finder.bounds)
        return add_speakers(transcript, whole, self.finder.known, source=source)


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
