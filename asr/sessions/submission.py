"""Recordings on their way through the engine: one of a session (`Submission`), or all of one call (`Call`).

A submission is in two threads and has no lock: a reader's thread takes its windows out of it, the engine's
thread puts results into it; the reader only adds (windows, silence, the end), and the engine's thread only
reads what was added. It knows nothing of other recordings: `asr.sessions.session` distributes the slots.

A call is what `Transcriber.transcribe` does, so that the transcriber itself keeps no state. It keeps the
engine's rows filled with requests, passes results on, and yields a recording's outcome when its last window
has ended. Requests are pulled as rows become free, so hours of audio are never in memory. They come from a
`WindowSource`: `ParallelWindows` are cut in pauses and encoded together, up to a batch at a time where that
is faster; `asr.decode.sequential` has the other source.

Faults are contained: one in a window costs that window, which the coverage reports as failed; one in
reading costs that recording.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from forescribe.speculative.requests import Request

from ..audio.inputs import Input
from ..audio.reading import Open, Recording, Samples, open_audio
from ..decode.answers import Extent, whole_window
from ..decode.context import DecodingContext, EncodedWindow, Ended, encode_windows
from ..decode.options import Decoded, Hook, Options, Outcome, PhaseTimes
from ..decode.recording import RecordingState, WindowTag, in_order, internal
from ..decode.windows import BoundOptions, WindowDecoder, bind, language_in, outcome_of, pauses_for
from ..decode.word_timer import WordTimer
from ..errors import CapacityError, ForescribeError, UsageError
from ..segment.cut_plan import Plan, planned_windows
from ..segment.windows import Window, cut
from .parts import Part, PartQueue, ProgressReporter


class Submission:
    """One recording on its way through a session.

    `name` is for messages. `tap` receives its samples too, on a reader's thread. `windows` says where
    its windows come from; None cuts them. Raises UsageError for options that the model cannot serve.
    """

    def __init__(
        self,
        context: DecodingContext,
        source: Input,
        options: Options,
        listener: Listener,
        *,
        arrived_s: float = 0.0,
        name: str | None = None,
        tap: Tap | None = None,
        windows: Windows | None = None,
    ) -> None:
        if options.long_form == "sequential":
            raise UsageError("a session decodes windows in parallel; it cannot be sequential")
        self.context, self.source, self.listener, self.tap = context, source, listener, tap
        self.name = name or Outcome(source).name
        self.arrived_s = arrived_s
        self.bound = bind(options, context)
        self._windows = windows or CutWindows(context, options)
        self._timer = WordTimer(context.whisper, options.task, self._windows.timing_batch)
        self.decoder = WindowDecoder(context, self.bound, self._timer, self._give_up)
        self.phases: PhaseTimes | None = None  # set before it is queued, if somebody reads them
        self._parts = PartQueue(context.whisper)
        self.recording: RecordingState | None = None  # None until it has been opened
        self.outcome: Outcome | None = None
        self.settled = False  # there is an outcome, or it was cancelled
        self.stopped = False  # its reader ends before the next block
        self.source_released = False  # no reader will use the source again

    def time_phases(self, phases: PhaseTimes | None) -> None:
        """Have the times of its phases written; call it before the submission is queued."""
        self.phases = self._timer.phases = phases

    # -- on a reader's thread ---------------------------------------------------------------------

    def read(self) -> Generator[Window, None, None]:
        """The windows with speech, in order. Raises what `open_audio` and the decoder raise."""
        with open_audio(self.source, name=self.name) as audio:
            audio.tap = self._block_read
            recording = RecordingState(self.source, audio, self.name, time.perf_counter())
            for decoded in self._windows.restore(recording):
                self._parts.add(decoded)
            self.recording = recording
            yield from recording.spoken_windows(self._windows.read(recording))

    def _block_read(self, samples: Samples) -> None:
        # Silence makes no window: without this, hours of it would be read after the recording's end.
        if self.stopped:
            raise CapacityError(f"{self.name}: its reading was stopped")
        if self.tap is not None:
            self.tap(samples)

    @property
    def fully_read(self) -> bool:
        """Whether the last window has been read."""
        return self.recording is not None and self.recording.fully_read

    # -- on the engine's thread -------------------------------------------------------------------

    def request(self, window: Window, encoded: EncodedWindow | Exception) -> Request | None:
        """The request for a window; None where an exception has ended it. Raises as `report` does."""
        recording = self.recording
        assert recording is not None
        try:
            return _request_for(self.decoder, recording, window, encoded)
        except Exception as error:
            tag = _tag_of(self.decoder, recording, window)
            self._window_ended(recording, self.decoder.fail(tag, error))
            return None

    def finish(self, ended: Ended) -> None:
        """A window has ended; it may go back into the engine at another temperature."""
        assert self.recording is not None
        self._window_ended(self.recording, self.decoder.finish(ended))

    def take_rests(self) -> list[Window]:
        """The parts of windows that are to be encoded next."""
        rests = [window for _, window in self.decoder.rests]
        self.decoder.rests.clear()
        return rests

    def report(self) -> None:
        """Tell the listener what is complete in order, and make the outcome when everything is.

        Raises what the listener raises.
        """
        recording = self.recording
        if recording is None or self.settled:
            return
        part = self._parts.next_part(recording)
        if part is not None:
            self.listener.progressed(part)
        if recording.complete:
            self._timer.run()
            outcome = outcome_of(self.context, self.bound, recording)
            self.settle(replace(outcome, decoded=tuple(in_order(recording.decoded))))

    def settle(self, outcome: Outcome | None) -> None:
        """Set the outcome, None where it is cancelled; later calls change nothing. Its windows leave
        the engine."""
        if self.settled:
            return
        self.outcome, self.settled, self.stopped = outcome, True, True
        if self.recording is not None:
            self.decoder.forget(self.recording)

    def _window_ended(self, recording: RecordingState, decoded: Decoded | None) -> None:
        if decoded is None:
            return
        self._windows.ended(self.decoder, recording, decoded)
        self._parts.add(decoded)
        self.report()

    def _give_up(self, recording: RecordingState, error: ForescribeError) -> None:
        self.settle(Outcome(self.source, error=error))


class Listener(Protocol):
    """Receives the results of one recording, on the engine's thread: it must neither block nor raise."""

    def progressed(self, part: Part) -> None: ...

    def ended(self, outcome: Outcome | None) -> None:
        """Called once and last, when the source is no longer read. None where it was cancelled."""


Tap = Callable[[Samples], None]
"""Receives the samples of a recording as they are read."""


class Windows(Protocol):
    """Where the windows of a submission come from."""

    timing_batch: int | None
    """Windows whose words are timed together; None where `ended` decides."""

    def restore(self, recording: RecordingState) -> Iterable[Decoded]:
        """Put windows that were decoded earlier into a recording, and return them."""

    def read(self, recording: RecordingState) -> Iterator[Window]:
        """The other windows, on a reader's thread."""

    def ended(self, decoder: WindowDecoder, recording: RecordingState, decoded: Decoded) -> None:
        """A window has ended, on the engine's thread."""


class CutWindows:
    """Windows that are cut while the recording is read."""

    def __init__(self, context: DecodingContext, options: Options) -> None:
        self.context, self.options = context, options
        self.timing_batch: int | None = context.batch

    def restore(self, recording: RecordingState) -> Iterable[Decoded]:
        return ()

    def read(self, recording: RecordingState) -> Iterator[Window]:
        # Without the stopwatch: recordings are read at the same time as others are decoded.
        return _cut_windows(self.context, self.options, recording.audio)

    def ended(self, decoder: WindowDecoder, recording: RecordingState, decoded: Decoded) -> None:
        """Nothing depends on a single window."""


class Call:
    """The recordings of one call. Raises nothing for a recording: its outcome holds the error."""

    def __init__(
        self,
        context: DecodingContext,
        bound: BoundOptions,
        hook: Hook | None,
        open: Open,
        *,
        extent: Extent = whole_window,
    ) -> None:
        self.context, self.bound, self.open = context, bound, open
        self.recordings: list[RecordingState] = []
        self.timer = WordTimer(context.whisper, bound.options.task, context.batch)
        self.decoder = WindowDecoder(context, bound, self.timer, self._give_up, extent=extent)
        self._reporter = ProgressReporter(context, hook)
        self._failed: deque[Outcome] = deque()

    def run(self, windows: WindowSource, sources: Iterable[Input]) -> Iterator[Outcome]:
        """Yield outcomes as recordings end."""
        engine, slots, decoder = self.context.engine, self.context.slots, self.decoder
        requests, more = windows.requests(sources), True
        try:
            while more or decoder.in_engine:
                while more and slots.free:
                    request = next(requests, None)
                    if request is None:
                        more = False
                    else:
                        slots.submit(request)
                for ended in slots.ended(engine.step()):
                    self._finish(windows, ended)
                    yield from self._outcomes()
                if decoder.rests and not more:
                    requests, more = windows.requests(()), True
                self._reporter.show_partial(next(iter(self.recordings), None))
                yield from self._outcomes()
        finally:  # the caller may stop at any outcome
            self._abandon(requests)

    def begin(self, source: Input, audio: Recording) -> RecordingState:
        """Add a recording that has been opened."""
        name = Outcome(source).name
        recording = RecordingState(source, audio, name, time.perf_counter())
        self.recordings.append(recording)
        return recording

    def fail(self, source: Input, recording: RecordingState | None, error: ForescribeError) -> None:
        """End a recording with an error; None where it could not be opened."""
        if recording is not None:
            if recording not in self.recordings:  # it has its outcome already
                return
            recording.failed = True
            self._end(recording)
            self.decoder.forget(recording)
        wall = 0.0 if recording is None else time.perf_counter() - recording.started
        self._failed.append(Outcome(source, error=error, wall_s=wall))

    def _give_up(self, recording: RecordingState, error: ForescribeError) -> None:
        self.fail(recording.source, recording, error)

    def _finish(self, windows: WindowSource, ended: Ended) -> None:
        decoded = self.decoder.finish(ended)
        if decoded is None:
            return
        tag: WindowTag = ended.request.tag
        request = windows.following(tag, decoded)
        if request is not None:
            self.context.slots.submit(request)
        self._reporter.window_ended(tag.recording, decoded)

    def _outcomes(self) -> Iterator[Outcome]:
        while self._failed:
            yield self._failed.popleft()
        complete = [recording for recording in self.recordings if recording.complete]
        if complete and self.timer.waiting:
            self.timer.run()
        for recording in complete:
            self._end(recording)
            yield outcome_of(self.context, self.bound, recording)

    def _end(self, recording: RecordingState) -> None:
        self.recordings.remove(recording)
        self._reporter.recording_ended(recording)
        recording.resources.close()

    def _abandon(self, requests: Generator[Request, None, None]) -> None:
        requests.close()
        if self.decoder.in_engine:
            self.decoder.drop(self.decoder.in_engine)
            self.context.slots.settle()
        for recording in self.recordings:
            recording.resources.close()


class WindowSource(Protocol):
    """A way through long recordings: their windows, as requests."""

    def requests(self, sources: Iterable[Input]) -> Generator[Request, None, None]:
        """Requests that depend on no result, pulled as rows become free."""

    def following(self, tag: WindowTag, decoded: Decoded) -> Request | None:
        """The request that a window's result leads to, if any."""


class ParallelWindows:
    """The `WindowSource` of independent windows."""

    def __init__(self, call: Call) -> None:
        self.call, self.context = call, call.context

    def requests(self, sources: Iterable[Input]) -> Generator[Request, None, None]:
        """Requests of all recordings in order, encoded in batches; parts of windows that have been begun go
        first."""
        windows, rests = self._spoken_windows(sources), self.call.decoder.rests
        while True:
            ready: list[Ready] = []
            while len(ready) < self.context.encoded_together:
                window = rests.popleft() if rests else next(windows, None)
                if window is None:
                    break
                ready.append(window)
            if not ready:
                return
            yield from self._encoded(ready)

    def following(self, tag: WindowTag, decoded: Decoded) -> Request | None:
        """None: what is left of a window waits with the others to be encoded."""
        return None

    def _spoken_windows(self, sources: Iterable[Input]) -> Iterator[Ready]:
        for source in sources:
            recording: RecordingState | None = None
            try:
                with self.call.open(source) as audio:
                    recording = self.call.begin(source, audio)
                    windows = self._cut(audio)
                    for window in recording.spoken_windows(windows):
                        yield recording, window
            except Exception as error:  # of a decoder or our own: the other recordings go on
                # A recording that has been read is complete, even if closing it fails.
                if recording is None or not recording.fully_read:
                    self.call.fail(source, recording, internal(source, error))

    def _cut(self, audio: Recording) -> Iterator[Window]:
        windows = _cut_windows(self.context, self.call.bound.options, audio)
        while True:
            self.context.watch.start()
            window = next(windows, None)
            self.context.watch.mark("audio")
            if window is None:
                return
            yield window

    def _encoded(self, ready: list[Ready]) -> Iterator[Request]:
        ready = [(recording, window) for recording, window in ready if not recording.failed]
        if not ready:
            return
        self.context.watch.start()
        detect = [self.call.decoder.detects_language(window) for _, window in ready]
        encoded = encode_windows(self.context, [window.samples for _, window in ready], detect)
        self.context.watch.mark("encode")
        for (recording, window), result in zip(ready, encoded, strict=True):
            request = None if recording.failed else self._request(recording, window, result)
            if request is not None:
                yield request

    def _request(
        self, recording: RecordingState, window: Window, encoded: EncodedWindow | Exception
    ) -> Request | None:
        """The request for a window; None where an exception has ended it."""
        decoder = self.call.decoder
        try:
            return _request_for(decoder, recording, window, encoded)
        except Exception as error:
            decoder.fail(_tag_of(decoder, recording, window), error)
            return None


Ready = tuple[RecordingState, Window]
"""A window that waits to be encoded."""


def _cut_windows(context: DecodingContext, options: Options, audio: Recording) -> Iterator[Window]:
    """The windows of a recording: those it was cut into before; else cut in its pauses."""
    if audio.spans is not None:
        return planned_windows(audio.blocks(), Plan(audio.spans))
    detector = context.voice_detector()
    return cut(audio.blocks(), detector, options.windows, skip_silence=options.vad)


def _request_for(
    decoder: WindowDecoder,
    recording: RecordingState,
    window: Window,
    encoded: EncodedWindow | Exception,
) -> Request:
    """The request for an encoded window. Raises the exception that encoding ended with."""
    if isinstance(encoded, Exception):
        raise encoded
    bound = decoder.bound
    tag = WindowTag(
        recording,
        window.index,
        window.start,
        window.end,
        bound.language or window.language or language_in(recording, encoded),
        pauses_for(bound.options, encoded.features, window.length),
        window.voiced,
        window,
    )
    return decoder.request(tag, encoded.encoder_states, bound.previous)


def _tag_of(decoder: WindowDecoder, recording: RecordingState, window: Window) -> WindowTag:
    """The tag of a window that failed before its request was made."""
    language = decoder.bound.language or window.language or recording.language or ""
    return WindowTag(
        recording, window.index, window.start, window.end, language, voiced=window.voiced
    )
