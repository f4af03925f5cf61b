"""Call: the recordings of one `transcribe` call, so that the transcriber itself keeps no state.

Keeps the engine's rows filled with requests, passes results on, and yields a recording's outcome when
its last window has ended. Requests are pulled as rows become free, so hours of audio are never in memory.

Faults are contained: one in a window costs that window, which the coverage reports as failed; one in
reading costs that recording. Knows nothing of how windows are cut: that is a `WindowSource`'s work.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Protocol

from forescribe.speculative.requests import Request

from ...audio.reading import Input, Open, Recording
from ...errors import ForescribeError
from ..decoding_context import DecodingContext
from ..isolation import Ended
from ..outcome import Decoded, Hook, Outcome
from .progress_hook import ProgressReporter
from .recording_state import RecordingState, WindowTag
from .transcripts import outcome_of
from .window_decoder import WindowDecoder
from .window_requests import BoundOptions
from .window_results import Extent, whole_window
from .word_timer import WordTimer


class WindowSource(Protocol):
    """A way through long recordings: their windows, as requests."""

    def requests(self, sources: Iterable[Input]) -> Generator[Request, None, None]:
        """Requests that depend on no result, pulled as rows become free."""

    def following(self, tag: WindowTag, decoded: Decoded) -> Request | None:
        """The request that a window's result leads to, if any."""


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
