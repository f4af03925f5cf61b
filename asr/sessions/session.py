"""Session: recordings from any thread, at any time, share one transcriber's slots.

    session = Session(transcriber)
    threading.Thread(target=session.run).start()        # the one thread that uses the model
    submission = session.submit("memo.flac", Options(), listener)
    session.cancel(submission)

Slots are shared by window, not by recording. A window is decoded in order of its *due time*: the time
when its recording arrived, plus the position in it where the window starts. So a short upload passes an
hour that came before it, and the hour still progresses at real time or faster, however many short ones
follow. Knows nothing of HTTP.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from forescribe.speculative.requests import Request
from forescribe.speculative.stats import Stats

from ..audio.inputs import Input
from ..decode.context import EncodedWindow, Ended, encode_windows
from ..decode.options import Options, Outcome, PhaseTimes
from ..decode.recording import RecordingState, fault
from ..decode.transcriber import Transcriber
from ..errors import CapacityError
from .readers import Note, ReadAhead, ReadWindow
from .submission import Listener, Submission, Tap

T = TypeVar("T")

LOG = logging.getLogger(__name__)

STATS_S = 5.0
"""How old `Session.stats` may be. Reading the statistics waits for the device, and releases what its
stopwatches hold."""


@dataclass(order=True)
class _EncodedRequest:
    """A window that has been encoded: its request for the engine."""

    due_s: float
    number: int
    submission: Submission = field(compare=False)
    request: Request = field(compare=False)


class Session:
    """Shares a transcriber among recordings. `run` owns the engine's thread; `submit`, `enter`,
    `cancel`, `close` and the attributes `stats` and `standing_s` are for any thread.

    `readers` threads decode audio. While a session runs, nothing else may use the transcriber.
    """

    def __init__(
        self,
        transcriber: Transcriber,
        *,
        readers: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.transcriber, self.context, self.clock = transcriber, transcriber.context, clock
        self.context.voice_detector()  # loaded once, before several readers need it
        self.reading = ReadAhead(limit=2 * transcriber.batch, threads=readers)
        self.stats = Stats()  # of all recordings so far, at most STATS_S old
        self._stats_read_s = clock()
        self._live: set[Submission] = set()  # guarded by `reading.changed`
        self._step_began_s: float | None = None
        self._encoded: list[_EncodedRequest] = []
        self._owners: dict[RecordingState, Submission] = {}

    # -- from any thread --------------------------------------------------------------------------

    def submit(
        self,
        source: Input,
        options: Options,
        listener: Listener,
        *,
        name: str | None = None,
        tap: Tap | None = None,
        phases: PhaseTimes | None = None,
    ) -> Submission:
        """Queue a recording; `tap` receives its samples too, on a reader's thread, and `phases` the times
        of its phases.

        Raises UsageError for options that the model cannot serve, CapacityError once the session is
        closed; errors of the recording are in its outcome.
        """
        submission = Submission(
            self.context, source, options, listener, arrived_s=self.clock(), name=name, tap=tap
        )
        submission.time_phases(phases)
        return self.enter(submission)

    def enter(self, submission: Submission) -> Submission:
        """Queue a submission that was made for this session's transcriber. Raises CapacityError once
        the session is closed."""
        with self.reading.changed:
            self.reading.add(submission)
            self._live.add(submission)
        return submission

    def cancel(self, submission: Submission) -> None:
        """Free its rows before the next step; its listener is notified when the source is released."""
        self.reading.note(Note(submission))

    def close(self) -> None:
        """End `run` after its step. Recordings that are not complete fail with CapacityError; their readers
        end with the block that they read."""
        with self.reading.changed:
            for submission in list(self._live):  # the engine's thread removes those that have ended
                submission.stopped = True
        self.reading.close()

    @property
    def standing_s(self) -> float:
        """Seconds since the step under way began; 0 between steps."""
        began_s = self._step_began_s
        return 0.0 if began_s is None else self.clock() - began_s

    # -- on the engine's thread -------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the session is closed.

        An exception of the model fails the recordings under way, but none that come later. Raises
        BrokenError once the device has failed.
        """
        self.reading.start()
        try:
            while self.reading.wait(self._has_work):
                self._step_began_s = self.clock()
                try:
                    self._step()
                except Exception as error:
                    self._fail_all(error)
                self._step_began_s = None
                if self.context.engine.broken is not None:
                    raise self.context.engine.broken
        finally:
            self.close()
            self.reading.join()
            self._fail_all(CapacityError("the service is stopping"))
            self._handle_notes()

    def _has_work(self) -> bool:
        return bool(self._encoded) or not self.context.slots.idle

    def _step(self) -> None:
        self._handle_notes()
        self._fill_slots()
        for ended in self.context.slots.ended(self.context.engine.step()):
            self._finish(ended)
        if self.clock() - self._stats_read_s >= STATS_S or self.context.slots.idle:
            self.stats, self._stats_read_s = self.transcriber.stats(), self.clock()

    def _handle_notes(self) -> None:
        for note in self.reading.take_notes():
            submission = note.submission
            submission.source_released |= note.released
            if note.error is not None:
                self._settle(submission, Outcome(submission.source, error=note.error))
            elif note.released:
                self._contained(submission, submission.report)
            else:
                self._settle(submission, None)
            self._release(submission)

    def _finish(self, ended: Ended) -> None:
        submission = self._owners.get(ended.request.tag.recording)
        if submission is not None:
            _mark(submission, "rounds", time.time_ns())
            self._contained(submission, lambda: submission.finish(ended))
            self.reading.put(submission, submission.take_rests())
            self._release(submission)

    def _contained(self, submission: Submission, act: Callable[[], T]) -> T | None:
        """Run `act`; an exception fails this recording and no other."""
        try:
            return act()
        except Exception as error:
            error = fault(submission.name, error)
            self._settle(submission, Outcome(submission.source, error=error))
            return None

    def _settle(self, submission: Submission, outcome: Outcome | None) -> None:
        submission.settle(outcome)
        self.reading.abandon(submission)

    def _release(self, submission: Submission) -> None:
        """Tell the listener of a recording that is settled and no longer read."""
        settled = submission.settled and submission.source_released
        if not (settled and submission in self._live):
            return
        self._live.remove(submission)
        if submission.recording is not None:
            self._owners.pop(submission.recording, None)
        try:
            submission.listener.ended(submission.outcome)
        except Exception:  # the listener's own: other recordings go on
            LOG.exception("a listener failed at the end of %s", submission.name)

    def _fail_all(self, error: Exception) -> None:
        with self.reading.changed:
            live = list(self._live)
            self.reading.clear()
        self._encoded = []
        for submission in live:
            cause = fault(submission.name, error)
            self._settle(submission, Outcome(submission.source, error=cause))
            self._release(submission)

    # -- windows into the engine ------------------------------------------------------------------

    def _fill_slots(self) -> None:
        """Fill the free rows with the windows that are due first."""
        while self.context.slots.free:
            if self._must_encode():
                self._encode()
            if not self._encoded:
                return
            chosen = heapq.heappop(self._encoded)
            if not chosen.submission.settled:
                _mark(chosen.submission, "rounds", time.time_ns())
                self.context.slots.submit(chosen.request)

    def _must_encode(self) -> bool:
        """Whether a window that has not been encoded is due before all that have been."""
        due_s = self.reading.next_due_s()
        return due_s is not None and not (self._encoded and self._encoded[0].due_s <= due_s)

    def _encode(self) -> None:
        """Encode the next windows of all recordings together, up to a batch."""
        taken = self.reading.take_windows(self.context.batch)
        batch = [window for window in taken if not window.submission.settled]
        if not batch:
            return
        self.context.watch.start()
        began_ns = time.time_ns()
        detect = [read.submission.decoder.detects_language(read.window) for read in batch]
        encoded = encode_windows(self.context, [read.window.samples for read in batch], detect)
        self.context.watch.mark("encode")
        for submission in {window.submission for window in batch}:
            _mark(submission, "encode", began_ns)
        for read, result in zip(batch, encoded, strict=True):
            self._queue(read, result)

    def _queue(self, read: ReadWindow, encoded: EncodedWindow | Exception) -> None:
        """Queue a window's request for the engine, unless an exception has ended the window."""
        submission = read.submission
        if submission.settled:  # by a window before this one
            return
        request = self._contained(submission, lambda: submission.request(read.window, encoded))
        if request is not None:
            self._owners[request.tag.recording] = submission
            heapq.heappush(
                self._encoded, _EncodedRequest(read.due_s, read.number, submission, request)
            )
        self._release(submission)


def _mark(submission: Submission, phase: str, began_ns: int) -> None:
    """A part of a phase ends now; nothing happens if nobody reads the times."""
    if submission.phases is not None:
        submission.phases.add(phase, began_ns, time.time_ns())
