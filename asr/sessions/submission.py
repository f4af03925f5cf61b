"""Submission: one recording on its way through a session, with the windows that it is decoded in.

A submission is in two threads and has no lock: a reader's thread takes its windows out of it, the engine's
thread puts results into it; the reader only adds (windows, silence, the end), and the engine's thread only
reads what was added. In a call both are the caller's thread. Where its windows come from is a `Windows`:
cut in pauses here, by a plan in `asr.sessions.planned`, one after the other in `asr.decode.sequential`.

Faults are contained: one in a window costs that window, which the coverage reports as failed; one in
reading costs the recording. Knows nothing of other recordings: `asr.sessions.session` distributes the slots.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Protocol

from forescribe.speculative.requests import Request

from ..audio.inputs import Input
from ..audio.reading import Open, Samples, open_audio
from ..decode.answers import whole_window
from ..decode.context import DecodingContext, EncodedWindow, Ended
from ..decode.options import Decoded, Outcome, PhaseTimes
from ..decode.recording import RecordingState, WindowTag, in_order
from ..decode.windows import BoundOptions, WindowDecoder, language_in, outcome_of, pauses_for
from ..decode.word_timer import WordTimer
from ..errors import CapacityError, ForescribeError
from ..formats.transcript_parts import State
from ..segment.cut_plan import Plan, planned_windows
from ..segment.windows import Window, cut
from .parts import Part, PartQueue, ProgressReporter


class Submission:
    """One recording on its way through a session.

    `listener` hears of it; None in a call, which yields its outcome and tells its `progress`. `name` is for
    messages. `tap` receives its samples too, on a reader's thread. `open` opens it. `windows` says where its
    windows come from; None cuts them. `timer` times its words, together with those of other recordings that
    share it; None makes one of its own.
    """

    def __init__(
        self,
        context: DecodingContext,
        source: Input,
        bound: BoundOptions,
        listener: Listener | None,
        *,
        arrived_s: float = 0.0,
        name: str | None = None,
        tap: Tap | None = None,
        open: Open | None = None,
        windows: Windows | None = None,
        timer: WordTimer | None = None,
        progress: ProgressReporter | None = None,
    ) -> None:
        self.context, self.source, self.bound, self.listener = context, source, bound, listener
        self.name = name or Outcome(source).name
        self.arrived_s = arrived_s
        self._tap, self._progress = tap, progress
        self._open = open or partial(open_audio, name=self.name)
        self._windows = windows = windows or Windows(context, bound)
        self._timer = timer or WordTimer(context.whisper, bound.options.task, windows.timing_batch)
        self.decoder = WindowDecoder(context, bound, self._timer, windows.extent)
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
        """The windows with speech, in order. Raises what `open` and the decoder raise."""
        with self._open(self.source) as audio:
            self._tap = self._tap or audio.tap  # whoever opens it may listen too
            audio.tap = self._block_read
            try:
                recording = RecordingState(self.source, audio, self.name, time.perf_counter())
                for decoded in self._windows.restore(recording):
                    self._parts.add(decoded)
                self.recording = recording
                yield from self._windows.read(recording)
            finally:
                audio.tap = None  # no cycle through the recording: it is freed with its outcome

    def _block_read(self, samples: Samples) -> None:
        # Silence makes no window: without this, hours of it would be read after the recording's end.
        if self.stopped:
            raise CapacityError(f"{self.name}: its reading was stopped")
        if self._tap is not None:
            self._tap(samples)

    @property
    def fully_read(self) -> bool:
        """Whether the last window has been read."""
        return self.recording is not None and self.recording.fully_read

    # -- on the engine's thread -------------------------------------------------------------------

    def request(self, window: Window, encoded: EncodedWindow | Exception) -> Request | None:
        """The request for a window; None where an exception has ended it. Raises as `report` does."""
        recording = self.recording
        assert recording is not None
        known = self.bound.language or window.language
        try:
            if isinstance(encoded, Exception):
                raise encoded
            tag = WindowTag(
                recording,
                window.index,
                window.start,
                window.end,
                known or language_in(recording, encoded),
                pauses_for(self.bound.options, encoded.features, window.length),
                window.voiced,
                None if window.tentative or window.features is not None else window,
            )
            windows, states = self._windows, encoded.encoder_states
            return self.decoder.request(
                tag, states, windows.previous, windows.hypothesis, window.guess
            )
        except Exception as error:
            language = known or recording.language or ""
            tag = WindowTag(
                recording, window.index, window.start, window.end, language, voiced=window.voiced
            )
            self._window_ended(recording, self.decoder.fail(tag, error))
            return None

    def finish(self, ended: Ended) -> None:
        """A window has ended; it may go back into the engine at another temperature."""
        assert self.recording is not None
        self._window_ended(self.recording, self.decoder.finish(ended))

    def take_rests(self) -> list[Window]:
        """The windows that are to be encoded next because of those that have ended."""
        rests, self.decoder.rests = self.decoder.rests, []
        return rests

    def report(self, ended: Decoded | None = None) -> None:
        """Tell of a window that has ended and of what is complete in order, and make the outcome when
        everything is.

        Raises what the listener or the hook raises.
        """
        recording = self.recording
        if recording is None or self.settled:
            return
        if self._progress is not None and ended is not None:
            self._progress.window_ended(recording, ended, self._parts)
        if self.listener is not None:
            part = self._parts.next_part(recording)
            if part is not None:
                self.listener.progressed(part)
        if recording.complete:
            self._timer.run()
            outcome = self._windows.outcome(recording)
            if self.listener is not None:
                outcome = replace(outcome, decoded=tuple(in_order(recording.decoded)))
            self.settle(outcome)

    def fail(self, error: ForescribeError) -> None:
        """Settle it with an error."""
        wall_s = 0.0 if self.recording is None else time.perf_counter() - self.recording.started
        self.settle(Outcome(self.source, error=error, wall_s=wall_s))

    def settle(self, outcome: Outcome | None) -> None:
        """Set the outcome, None where it is cancelled; later calls change nothing. Its windows leave
        the engine."""
        if self.settled:
            return
        self.outcome, self.settled, self.stopped = outcome, True, True
        if self.recording is not None:
            self.decoder.forget(self.recording)
            self.recording.resources.close()

    def _window_ended(self, recording: RecordingState, decoded: Decoded | None) -> None:
        if self.decoder.fatal is not None:
            self.fail(self.decoder.fatal)
        if decoded is None:
            return
        self._windows.ended(self.decoder, recording, decoded)
        self._parts.add(decoded)
        self.report(decoded)


class Listener(Protocol):
    """Receives the results of one recording, on the engine's thread: it must neither block nor raise."""

    def progressed(self, part: Part) -> None: ...

    def ended(self, outcome: Outcome | None) -> None:
        """Called once and last, when the source is no longer read. None where it was cancelled."""


Tap = Callable[[Samples], None]
"""Receives the samples of a recording as they are read."""


class Windows:
    """Where the windows of a submission come from: cut while it is read. Other ways derive from it.

    `previous` are the tokens before the next window, `hypothesis` what an earlier one has written of it.
    `timing_batch` windows have their words timed together; None where `ended` decides.
    """

    independent = True
    """Whether windows can be encoded together: no window waits for the result of another."""

    hypothesis: tuple[int, ...] = ()

    def __init__(self, context: DecodingContext, bound: BoundOptions) -> None:
        self.context, self.bound = context, bound
        self.previous = bound.previous
        self.timing_batch: int | None = context.batch

    def restore(self, recording: RecordingState) -> Iterable[Decoded]:
        """Put windows that were decoded earlier into a recording, and return them."""
        return ()

    def read(self, recording: RecordingState) -> Iterator[Window]:
        """The other windows with speech, on a reader's thread: those that it was cut into before; else cut
        in its pauses."""
        audio, options = recording.audio, self.bound.options
        if audio.spans is not None:
            windows = planned_windows(audio.blocks(), Plan(audio.spans))
        else:
            detector = self.context.voice_detector()
            windows = cut(audio.blocks(), detector, options.windows, skip_silence=options.vad)
        return recording.spoken_windows(windows)

    def ended(self, decoder: WindowDecoder, recording: RecordingState, decoded: Decoded) -> None:
        """A window has ended, on the engine's thread; `decoder.rests` takes those that follow from it."""

    def outcome(self, recording: RecordingState) -> Outcome:
        """The outcome, once all windows have ended and their words have been timed."""
        return outcome_of(self.context, self.bound, recording)

    def extent(
        self, tag: WindowTag, tokens: tuple[int, ...], state: State
    ) -> tuple[int, tuple[int, ...]]:
        """How far an answer goes (`Extent`)."""
        return whole_window(tag, tokens, state)
