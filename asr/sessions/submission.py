"""Submission: one recording of a session. A reader's thread takes its windows out of it, the engine's
thread puts results into it.

There are two threads and no lock: the reader only adds (windows, silence, the end), and the engine's
thread only reads what was added. Knows nothing of other recordings; `asr.sessions.session` distributes
the slots.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from forescribe.speculative.requests import Request

from ..audio.reading import Input, Samples, open_audio
from ..decode.decoding_context import DecodingContext
from ..decode.encoding import EncodedWindow
from ..decode.isolation import Ended
from ..decode.options import Options
from ..decode.outcome import Decoded, Outcome
from ..decode.recordings.parallel import cut_windows, request_for, tag_of
from ..decode.recordings.phase_times import PhaseTimes
from ..decode.recordings.recording_state import RecordingState
from ..decode.recordings.transcripts import outcome_of
from ..decode.recordings.window_decoder import WindowDecoder
from ..decode.recordings.window_requests import bind
from ..decode.recordings.window_results import in_order
from ..decode.recordings.word_timer import WordTimer
from ..errors import CapacityError, ForescribeError, UsageError
from ..segment.windows import Window
from .parts import Part, PartQueue

Tap = Callable[[Samples], None]
"""Receives the samples of a recording as they are read."""


class Listener(Protocol):
    """Receives the results of one recording, on the engine's thread: it must neither block nor raise."""

    def progressed(self, part: Part) -> None: ...

    def ended(self, outcome: Outcome | None) -> None:
        """Called once and last, when the source is no longer read. None where it was cancelled."""


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
        return cut_windows(self.context, self.options, recording.audio)

    def ended(self, decoder: WindowDecoder, recording: RecordingState, decoded: Decoded) -> None:
        """Nothing depends on a single window."""


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
            return request_for(self.decoder, recording, window, encoded)
        except Exception as error:
            tag = tag_of(self.decoder, recording, window)
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
