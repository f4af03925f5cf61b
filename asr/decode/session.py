"""Session: the one driver of an engine. Recordings share its slots, in a thread or in the caller's.

    session = Session(transcriber.context)
    threading.Thread(target=session.run).start()        # the one thread that uses the model
    submission = session.submit("memo.flac", Options(), listener)
    session.cancel(submission)

Slots are shared by window, not by recording. A window is decoded in order of its *due time*: the time
when its recording arrived, plus the position in it where the window starts. So a short upload passes an
hour that came before it, and the hour still progresses at real time or faster, however many short ones
follow. Knows nothing of HTTP.

Recordings are read ahead of the model (`ReadAhead`), in order of due time, one window at a time, so memory
does not grow with their length or number: by threads, or in the calling thread by a `Call`
(`asr.decode.transcriber`). Events for the engine's thread are queued as notes.
"""

from __future__ import annotations

import heapq
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter

from forescribe.speculative.device import keep_to_one_core
from forescribe.speculative.requests import Stats

from ..audio.inputs import Input
from ..errors import CapacityError, ForescribeError
from ..formats.transcript_parts import seconds
from ..segment.windows import Window
from .context import DecodingContext, Ended, encode_windows
from .options import Listener, Options, PhaseTimes, Tap
from .recording import fault
from .requests import bind
from .submission import Submission
from .window import PendingWindow

LOG = logging.getLogger(__name__)

STATS_S = 5.0
"""How old `Session.stats` may be. Reading the statistics waits for the device, and releases what its
stopwatches hold."""


class Session:
    """Shares a model among recordings. `run` owns the engine's thread; `submit`, `enter`, `cancel`, `close`
    and the attributes `stats` and `standing_s` are for any thread.

    `readers` threads decode audio. While a session runs, nothing else may use the model.
    """

    inline = False
    """Whether all of it happens in the caller's thread, as in a `Call`."""

    def __init__(
        self,
        context: DecodingContext,
        *,
        readers: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.context, self.clock = context, clock
        if readers:
            context.voice_detector()  # loaded once, before several readers need it
        self.reading = ReadAhead(limit=2 * context.engine.batch, threads=readers)
        self.stats = Stats()  # of all recordings so far, at most STATS_S old
        self._stats_read_s = clock()
        self._live: dict[Submission, None] = {}  # in order; guarded by `reading.changed`
        self._step_began_s: float | None = None
        self._encoded: list[QueuedWindow] = []
        self._together = context.encoded_together
        self._taken_s = -math.inf  # in a call, when the last window that has been encoded was due
        self._ended: list[Submission] = []  # of a call: their outcomes are not yielded yet

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
        bound = bind(options, self.context)
        submission = Submission(
            self.context, source, bound, listener, arrived_s=self.clock(), name=name, tap=tap
        )
        submission.time_phases(phases)
        return self.enter(submission)

    def enter(self, submission: Submission) -> Submission:
        """Queue a submission that was made for this session's model. Raises CapacityError once the session
        is closed."""
        with self.reading.changed:
            self.reading.add(submission)
            self._live[submission] = None
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
            self.reading.closed = True
            self.reading.changed.notify_all()

    @property
    def idle(self) -> bool:
        """Whether there is no recording."""
        with self.reading.changed:
            return not self._live

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
        for thread in self.reading.threads:
            thread.start()
        try:
            while self.reading.wait(lambda: bool(self._encoded) or not self.context.slots.idle):
                self._step_began_s = self.clock()
                try:
                    self._step()
                except Exception as error:
                    self._end_all(error)
                self._step_began_s = None
                if self.context.engine.broken is not None:
                    raise self.context.engine.broken
        finally:
            self.close()
            for thread in self.reading.threads:
                thread.join()
            self._end_all(CapacityError("the service is stopping"))
            self._handle_notes()

    def _step(self) -> None:
        self._handle_notes()
        self._fill_slots()
        for ended in self.context.slots.ended(self.context.engine.step()):
            self._finish(ended)
        if self.clock() - self._stats_read_s >= STATS_S or self.context.slots.idle:
            self.stats, self._stats_read_s = self.context.stats(), self.clock()

    def _fill_slots(self) -> None:
        """Fill the free rows with the windows that are due first; those that wait are encoded together."""
        while self.context.slots.free:
            if not self._encoded:
                self._read_on()
            before_s = self._encoded[0].due_s if self._encoded else math.inf
            taken = self.reading.take_windows(self._together, before_s)
            if taken:
                self._encode(taken)
            elif not self._encoded:
                return
            else:
                chosen = heapq.heappop(self._encoded)
                if not chosen.submission.settled:
                    assert chosen.request is not None
                    _mark(chosen.submission, "rounds", time.time_ns())
                    self.context.slots.submit(chosen.request)

    def _read_on(self) -> None:
        """No encoded window waits. Nothing here: readers read on by themselves."""

    def _encode(self, taken: Sequence[QueuedWindow]) -> None:
        """Encode windows of all recordings together, and queue them for the engine."""
        if self.inline:
            self._taken_s = taken[-1].due_s
        batch = [pending for pending in taken if not pending.submission.settled]
        if not batch:
            return
        self.context.watch.start()
        began_ns = time.time_ns()
        detect = [pending.submission.detects_language(pending.window) for pending in batch]
        searched = [pending.submission.bound.searches(pending.window) for pending in batch]
        windows = [pending.window for pending in batch]
        encoded = encode_windows(self.context, windows, detect, searched)
        self.context.watch.mark("encode")
        for submission in set(map(attrgetter("submission"), batch)):
            _mark(submission, "encode", began_ns)
        for pending, result in zip(batch, encoded, strict=True):
            submission = pending.submission
            if submission.settled:  # by a window before this one
                continue
            with self._contained(submission):
                following = submission.encoded(pending, result)
                if following.request is not None:
                    heapq.heappush(self._encoded, pending)
                self.reading.put(submission, following.windows, self._taken_s)

    def _finish(self, ended: Ended) -> None:
        """A request has ended: its answer is judged, and what follows from it queued."""
        pending: QueuedWindow = ended.request.tag
        submission = pending.submission
        if submission not in self._live:  # of a call that another one has ended
            return
        _mark(submission, "rounds", time.time_ns())
        with self._contained(submission):
            following = submission.answered(pending, ended)
            if following.request is not None:
                self.context.slots.submit(following.request)  # behind the windows that wait
            self.reading.put(submission, following.windows, self._taken_s)

    def _handle_notes(self) -> None:
        for note in self.reading.take_notes():
            submission = note.submission
            submission.source_released |= note.released
            if note.error is not None:
                submission.fail(note.error)
            elif not note.released:
                submission.settle(None)
            with self._contained(submission):
                submission.report()

    @contextmanager
    def _contained(self, submission: Submission) -> Iterator[None]:
        """An exception, which is the listener's own, fails this recording and no other; in a call it is the
        hook's own, and ends the call."""
        try:
            yield
        except Exception as error:
            if self.inline:
                raise
            submission.fail(fault(submission.name, error))
        if submission.settled:
            self._release(submission)

    def _release(self, submission: Submission) -> None:
        """Tell of the end of a settled recording, once it is no longer read."""
        if not submission.source_released:
            self.reading.abandon(submission)
        if not submission.source_released or submission not in self._live:
            return
        del self._live[submission]
        if submission.listener is None:
            if submission.outcome is not None:
                self._ended.append(submission)
            return
        try:
            submission.listener.ended(submission.outcome)
        except Exception:  # the listener's own: other recordings go on
            LOG.exception("a listener failed at the end of %s", submission.name)

    def _end_all(self, error: Exception | None) -> None:
        """End all recordings with an error; None cancels them."""
        with self.reading.changed:
            live = list(self._live)
            self.reading.ready = []
        self._encoded = []
        for submission in live:
            if error is None:
                submission.settle(None)
            else:
                submission.fail(fault(submission.name, error))
            self._release(submission)


def _mark(submission: Submission, phase: str, began_ns: int) -> None:
    """A part of a phase ends now; nothing happens if nobody reads the times."""
    if submission.phases is not None:
        submission.phases.add(phase, began_ns, time.time_ns())


class ReadAhead:
    """Recordings that are being read, and windows that wait for the model.

    `limit` windows that are due before the next one may wait until it is read. `changed` guards all
    attributes; methods acquire it themselves.
    """

    def __init__(self, limit: int, threads: int) -> None:
        self.limit = limit
        self.changed = threading.Condition()
        self.readings: list[Reading] = []
        self.ready: list[QueuedWindow] = []
        self.notes: deque[Note] = deque()
        self.closed = False
        self._numbers = count()
        self.threads = [
            threading.Thread(target=self._run, name=f"reader-{i}", daemon=True)
            for i in range(threads)
        ]

    # -- from any thread --------------------------------------------------------------------------

    def add(self, submission: Submission) -> None:
        """Queue a recording. Raises CapacityError once closed."""
        with self.changed:
            if self.closed:
                raise CapacityError("the session is closed")
            number, windows = next(self._numbers), submission.read()
            reading = Reading(submission.arrived_s, number, submission, windows)
            heapq.heappush(self.readings, reading)
            self.changed.notify_all()

    def note(self, note: Note) -> None:
        with self.changed:
            self.notes.append(note)
            self.changed.notify_all()

    def put(
        self,
        submission: Submission,
        windows: Iterable[Window],
        since_s: float = -math.inf,
        number: int | None = None,
    ) -> None:
        """Queue windows of a recording, due at `since_s` or later; `number` is that of their reading, None
        for those that follow from other windows."""
        with self.changed:
            for window in windows:
                recording = submission.recording
                assert recording is not None  # it has been opened
                due_s = max(since_s, submission.arrived_s + seconds(window.start))
                place = next(self._numbers) if number is None else number
                queued = QueuedWindow(
                    recording, window, submission=submission, due_s=due_s, number=place
                )
                heapq.heappush(self.ready, queued)

    # -- on the engine's thread -------------------------------------------------------------------

    def wait(self, has_work: Callable[[], bool]) -> bool:
        """Wait for a note or a window, unless there is other work; False once closed."""
        with self.changed:
            while not (self.closed or self.notes or self.ready or has_work()):
                self.changed.wait()
            return not self.closed

    def take_notes(self) -> deque[Note]:
        with self.changed:
            notes, self.notes = self.notes, deque()
        return notes

    def take_windows(self, count: int, before_s: float) -> list[QueuedWindow]:
        """The windows that are due first; none unless the first one is due before `before_s`."""
        with self.changed:
            if not self.ready or self.ready[0].due_s >= before_s:
                return []
            taken = [heapq.heappop(self.ready) for _ in range(min(count, len(self.ready)))]
            self.changed.notify_all()  # the readers may go on
        return taken

    def abandon(self, submission: Submission) -> None:
        """Stop reading a recording: here if it is between two windows, otherwise as soon as its reader
        has finished the window."""
        with self.changed:
            for reading in self.readings:
                if reading.submission is submission:
                    self.readings.remove(reading)
                    heapq.heapify(self.readings)
                    reading.stop()
                    submission.source_released = True
                    return

    # -- on the readers' threads ------------------------------------------------------------------

    def _run(self) -> None:
        keep_to_one_core()
        while True:
            with self.changed:
                while not self.closed and not self.readable():
                    self.changed.wait()
                if self.closed:
                    for reading in self.readings:
                        reading.submission.source_released = True
                        reading.stop()
                    self.readings = []
                    return
                reading = heapq.heappop(self.readings)
            self.read_window(reading)

    def readable(self) -> bool:
        """Whether the window that is due next may be read: few windows that are due before it wait."""
        if not self.readings:
            return False
        due_s = self.readings[0].due_s
        return sum(window.due_s <= due_s for window in self.ready) < self.limit

    def read_window(self, reading: Reading) -> None:
        """Read one window; the recording is queued again or released, whatever happens."""
        submission, window = reading.submission, None
        error: ForescribeError | None = None
        try:
            window = next(reading.windows, None)
            # After the last window the recording need not wait for another turn to be released.
            over = window is None or submission.settled or submission.fully_read
        except Exception as raised:  # of a decoder or our own: the other recordings go on
            over = True
            # A recording that has been read is complete, even if closing it fails.
            if not submission.fully_read:
                error = fault(submission.name, raised)
        if over:
            reading.stop()
        with self.changed:
            if window is not None:
                self.put(submission, (window,), number=reading.number)
                reading.due_s = submission.arrived_s + seconds(window.end)
            if over:
                self.notes.append(Note(submission, released=True, error=error))
            else:
                heapq.heappush(self.readings, reading)
            self.changed.notify_all()


@dataclass(order=True)
class Reading:
    """A recording with windows left to read; the next one is due at `due_s`."""

    due_s: float
    number: int
    submission: Submission = field(compare=False)
    windows: Generator[Window, None, None] = field(compare=False)

    def stop(self) -> None:
        with suppress(Exception):
            self.windows.close()


@dataclass(eq=False, kw_only=True)
class QueuedWindow(PendingWindow):
    """A window with its place in the queues of a session: by `due_s`, then by `number`."""

    submission: Submission
    due_s: float
    number: int

    def __lt__(self, other: QueuedWindow) -> bool:
        return (self.due_s, self.number) < (other.due_s, other.number)


@dataclass(frozen=True)
class Note:
    """For the engine's thread: the reader has released a recording (with an error, if it failed), or
    the recording was cancelled."""

    submission: Submission
    released: bool = False
    error: ForescribeError | None = None
