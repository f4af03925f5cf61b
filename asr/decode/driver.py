"""The one loop that decodes: recordings' windows are read, encoded together, decoded in the engine's slots
and handed out as events; and `Session`, the loop in a thread of its own.

    session = Session(transcriber.context)
    threading.Thread(target=session.run).start()        # the one thread that uses the model
    submission = session.submit("memo.flac", Options(), listener)
    session.cancel(submission)

Slots are shared by window, not by recording. A window is decoded in order of its *due time*: the time when
its recording arrived, plus the position in it where the window starts. So a short upload passes an hour that
came before it, and the hour still progresses at real time or faster, however many short ones follow.

Recordings are read ahead of the model (`ReadAhead`) in order of due time, one window at a time, so memory
does not grow with their length or number: by threads of a session, or by the caller of a `Driver`.
"""

from __future__ import annotations

import heapq
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from forescribe.speculative.device import keep_to_one_core
from forescribe.speculative.requests import Result, Stats

from ..audio.inputs import Input
from ..errors import CapacityError, ForescribeError
from ..formats.transcript_parts import seconds
from ..segment.windows import Window
from .context import DecodingContext, encode_windows
from .options import Options
from .outcome import outcome_of
from .recording import Event, Progressed, RecordingEnded, Submission, fault
from .requests import bind
from .results import Listener, PhaseTimes, Tap
from .window import PendingWindow

LOG = logging.getLogger(__name__)

STATS_S = 5.0
"""How old `Session.stats` may be. Reading the statistics waits for the device, and releases what its
stopwatches hold."""


class Driver:
    """Decodes the windows of `reading` on the thread that calls it; its generators yield what happens.

    `behind`: what follows from a window waits behind those that are encoded already; else it is due with its
    recording.
    """

    def __init__(self, context: DecodingContext, reading: ReadAhead, *, behind: bool) -> None:
        self.context, self.reading, self.behind = context, reading, behind
        self.live: dict[Submission, None] = {}  # in order; guarded by `reading.changed`
        self.encoded: list[PendingWindow] = []
        self._since_s = -math.inf  # when the last window that was encoded was due

    def add(self, recording: Submission) -> None:
        """Begin with a recording, from any thread. Raises CapacityError once the reading is closed."""
        with self.reading.changed:
            self.reading.add(recording)
            self.live[recording] = None

    @property
    def wants(self) -> int:
        """How many more windows would be encoded together, if they were read now."""
        if self.encoded or not self.context.engine.free:
            return 0
        return max(0, self.context.encoded_together - len(self.reading.ready))

    @property
    def can_fill(self) -> bool:
        """Whether a row is free and a window waits for it."""
        return bool(self.context.engine.free and (self.encoded or self.reading.ready))

    def fill(self) -> Iterator[Event]:
        """Fill free rows with the windows that are due first, until those that are encoded have one; those
        that wait are encoded together."""
        while self.can_fill:
            before_s = self.encoded[0].due_s if self.encoded else math.inf
            taken = self.reading.take_windows(self.context.encoded_together, before_s)
            if taken:
                yield from self._encode(taken)
            elif self.encoded:
                chosen = heapq.heappop(self.encoded)
                if not (recording := _of(chosen)).settled:
                    recording.mark("rounds", time.time_ns())
                    yield from self._submit(recording, chosen)
            if not self.encoded:
                return

    def notes(self) -> Iterator[Event]:
        """What was noted: recordings that are read to their end, have failed, or were cancelled."""
        for note in self.reading.take_notes():
            recording = note.recording
            recording.source_released |= note.released
            if note.error is not None:
                recording.fail(note.error)
            elif not note.released:
                recording.settle(None)
            if recording.audio is not None and not recording.settled:
                yield Progressed(recording, None)
            yield from self._complete(recording)

    def end_all(self, error: Exception | None) -> Iterator[Event]:
        """End all recordings with an error; None cancels them."""
        with self.reading.changed:
            live = list(self.live)
            self.reading.ready = []
        self.encoded = []
        for recording in live:
            if error is None:
                recording.settle(None)
            else:
                recording.fail(fault(recording.name, error))
            yield from self._complete(recording)

    def _encode(self, taken: Sequence[PendingWindow]) -> Iterator[Event]:
        """Encode windows of all recordings together, and queue them for the engine."""
        if self.behind:
            self._since_s = taken[-1].due_s
        batch = [pending for pending in taken if not _of(pending).settled]
        if not batch:
            return
        self.context.watch.start()
        began_ns = time.time_ns()
        pairs = [(pending.window, _of(pending).bound) for pending in batch]
        encoded = encode_windows(
            self.context,
            [window for window, _ in pairs],
            [
                None if own.language or window.language else own.spoken.codes
                for window, own in pairs
            ],
            [own.searches(window) for window, own in pairs],
        )
        self.context.watch.mark("encode")
        for recording in {_of(pending) for pending in batch}:
            recording.mark("encode", began_ns)
        for pending, result in zip(batch, encoded, strict=True):
            recording = _of(pending)
            if recording.settled:  # by a window before this one
                continue
            recording.encoded(pending, result)
            if pending.request is not None:
                heapq.heappush(self.encoded, pending)
            else:
                yield from self._ended(recording, pending)

    def _submit(self, recording: Submission, pending: PendingWindow) -> Iterator[Event]:
        assert pending.request is not None
        try:
            self.context.engine.submit(pending.request)
            return
        except Exception as error:  # the engine rejects it
            recording.failed(pending, error)
        yield from self._ended(recording, pending)

    def answered(self, result: Result) -> Iterator[Event]:
        """The engine has answered a request: that is judged, and what follows from it is queued."""
        pending: PendingWindow = result.request.tag
        recording = _of(pending)
        if recording not in self.live:  # of a call that another one has ended
            return
        recording.mark("rounds", time.time_ns())
        rest = recording.answered(pending, result)
        if pending.request is not None:
            yield from self._submit(recording, pending)  # behind the windows that wait
            return
        if rest is not None:
            self.reading.put(recording, rest, self._since_s)
        yield from self._ended(recording, pending)
        yield from self.notes()

    def _ended(self, recording: Submission, pending: PendingWindow) -> Iterator[Event]:
        """A window has ended, unless it was dropped."""
        if pending.decoded is not None and not recording.settled:
            yield Progressed(recording, pending, recording.ended_group(pending))
        yield from self._complete(recording)

    def _complete(self, recording: Submission) -> Iterator[Event]:
        """The end of a recording that is settled, as it is where all windows have ended, once it is no longer
        read."""
        if recording.complete and not recording.settled:
            recording.settle(outcome_of(recording))
        if not recording.settled:
            return
        if not recording.source_released:
            self.reading.abandon(recording)
        if recording.source_released and recording in self.live:
            del self.live[recording]
            yield RecordingEnded(recording)


def _of(pending: PendingWindow) -> Submission:
    """The recording of a window."""
    assert isinstance(pending.recording, Submission)
    return pending.recording


class Session:
    """Shares a model among recordings. `run` owns the engine's thread; `submit`, `enter`, `cancel`, `close`
    and the attributes `stats` and `standing_s` are for any thread.

    `readers` threads decode audio. While a session runs, nothing else may use the model.
    """

    def __init__(
        self,
        context: DecodingContext,
        *,
        readers: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.context, self.clock = context, clock
        context.voice_detector()  # loaded once, before several readers need it
        self.reading = ReadAhead(limit=2 * context.engine.batch)
        self.driver = Driver(context, self.reading, behind=False)
        self.stats = Stats()  # of all recordings so far, at most STATS_S old
        self._stats_read_s = clock()
        self._step_began_s: float | None = None
        self._readers = [
            threading.Thread(target=self.reading.run, name=f"reader-{i}", daemon=True)
            for i in range(readers)
        ]

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
        of its phases. Raises UsageError for options that the model cannot serve, CapacityError once closed;
        errors of the recording are in its outcome."""
        recording = Submission(
            self.context,
            source,
            bind(options, self.context),
            listener,
            arrived_s=self.clock(),
            name=name,
            tap=tap,
        )
        recording.time_phases(phases)
        self.enter(recording)
        return recording

    def enter(self, recording: Submission) -> None:
        """Queue a recording that was made for this session's model. Raises CapacityError once closed."""
        self.driver.add(recording)

    def cancel(self, recording: Submission) -> None:
        """Free its rows before the next step; its listener is notified when the source is released."""
        self.reading.note(Note(recording))

    def close(self) -> None:
        """End `run` after its step. Recordings that are not complete fail with CapacityError; their readers
        end with the block that they read."""
        with self.reading.changed:
            for recording in list(self.driver.live):  # a copy: the engine's thread removes some
                recording.stopped = True
            self.reading.closed = True
            self.reading.changed.notify_all()

    @property
    def idle(self) -> bool:
        """Whether there is no recording."""
        return not self.driver.live

    @property
    def standing_s(self) -> float:
        """Seconds since the step under way began; 0 between steps."""
        began_s = self._step_began_s
        return 0.0 if began_s is None else self.clock() - began_s

    # -- on the engine's thread -------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the session is closed. An exception of the model fails the recordings under way, but
        none that come later. Raises BrokenError once the device has failed."""
        for thread in self._readers:
            thread.start()
        try:
            while self.reading.wait(lambda: bool(self.driver.encoded) or not self.context.idle):
                self._step_began_s = self.clock()
                try:
                    self._tell(self._step())
                except Exception as error:
                    self._tell(self.driver.end_all(error))
                self._step_began_s = None
                if self.context.engine.broken is not None:
                    raise self.context.engine.broken
        finally:
            self.close()
            for thread in self._readers:
                thread.join()
            self._tell(self.driver.end_all(CapacityError("the service is stopping")))
            self._tell(self.driver.notes())

    def _step(self) -> Iterator[Event]:
        yield from self.driver.notes()
        while self.driver.can_fill:
            yield from self.driver.fill()
        for result in self.context.ended(self.context.engine.step()):
            yield from self.driver.answered(result)
        if self.clock() - self._stats_read_s >= STATS_S or self.context.idle:
            self.stats, self._stats_read_s = self.context.stats(), self.clock()

    def _tell(self, events: Iterator[Event]) -> None:
        """Tell the listeners. An exception, which is the listener's own, fails its recording and no other."""
        for event in events:
            recording = event.recording
            listener = recording.listener
            assert listener is not None
            try:
                if isinstance(event, RecordingEnded):
                    listener.ended(recording.outcome)
                    continue
                if event.group is not None and recording.grouped is not None:
                    recording.grouped(recording, event.group)
                if (part := recording.next_part()) is not None:
                    listener.progressed(part)
            except Exception as error:
                if isinstance(event, RecordingEnded):
                    LOG.exception("a listener failed at the end of %s", recording.name)
                else:
                    recording.fail(fault(recording.name, error))


class ReadAhead:
    """Recordings that are being read, and windows that wait for the model.

    `limit` windows that are due before the next one may wait until it is read. `changed` guards all
    attributes; methods acquire it.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.changed = threading.Condition()
        self.readings: list[Reading] = []
        self.ready: list[PendingWindow] = []
        self.closed = False
        self._notes: deque[Note] = deque()
        self._numbers = count()

    # -- from any thread --------------------------------------------------------------------------

    def add(self, recording: Submission) -> None:
        """Queue a recording. Raises CapacityError once closed."""
        with self.changed:
            if self.closed:
                raise CapacityError("the session is closed")
            number, windows = next(self._numbers), recording.read()
            heapq.heappush(self.readings, Reading(recording.arrived_s, number, recording, windows))
            self.changed.notify_all()

    def note(self, note: Note) -> None:
        with self.changed:
            self._notes.append(note)
            self.changed.notify_all()

    def put(
        self,
        recording: Submission,
        window: Window,
        since_s: float = -math.inf,
        number: int | None = None,
    ) -> None:
        """Queue a window of a recording, due at `since_s` or later; `number` is that of its reading, None for
        one that follows from another window."""
        with self.changed:
            due_s = max(since_s, recording.arrived_s + seconds(window.start))
            place = next(self._numbers) if number is None else number
            heapq.heappush(self.ready, PendingWindow(recording, window, due_s, place))

    # -- on the engine's thread -------------------------------------------------------------------

    def wait(self, has_work: Callable[[], bool]) -> bool:
        """Wait for a note or a window, unless there is other work; False once closed."""
        with self.changed:
            while not (self.closed or self._notes or self.ready or has_work()):
                self.changed.wait()
            return not self.closed

    def take_notes(self) -> deque[Note]:
        with self.changed:
            notes, self._notes = self._notes, deque()
        return notes

    def take_windows(self, count: int, before_s: float) -> list[PendingWindow]:
        """The windows that are due first; none unless the first one is due before `before_s`."""
        with self.changed:
            if not self.ready or self.ready[0].due_s >= before_s:
                return []
            taken = [heapq.heappop(self.ready) for _ in range(min(count, len(self.ready)))]
            self.changed.notify_all()  # the readers may go on
        return taken

    def abandon(self, recording: Submission) -> None:
        """Stop reading a recording, once its reader has finished a window that is under way."""
        with self.changed:
            for reading in self.readings:
                if reading.recording is recording:
                    self.readings.remove(reading)
                    heapq.heapify(self.readings)
                    reading.stop()
                    recording.source_released = True
                    return

    # -- on a reader's thread ---------------------------------------------------------------------

    def run(self) -> None:
        """Read windows until closed."""
        keep_to_one_core()
        while True:
            with self.changed:
                while not self.closed and not self._readable():
                    self.changed.wait()
                if self.closed:
                    for reading in self.readings:
                        reading.recording.source_released = True
                        reading.stop()
                    self.readings = []
                    return
                reading = heapq.heappop(self.readings)
            self._read(reading)

    def read_window(self) -> float:
        """Read the window that is due next; when the one behind it will be."""
        with self.changed:
            reading = heapq.heappop(self.readings)
        self._read(reading)
        return reading.due_s

    def _readable(self) -> bool:
        """Whether the window that is due next may be read: few windows that are due before it wait."""
        if not self.readings:
            return False
        due_s = self.readings[0].due_s
        return sum(window.due_s <= due_s for window in self.ready) < self.limit

    def _read(self, reading: Reading) -> None:
        """Read one window; the recording is queued again or released, whatever happens."""
        recording, window = reading.recording, None
        error: ForescribeError | None = None
        try:
            window = next(reading.windows, None)
            # After the last window the recording need not wait for another turn to be released.
            over = window is None or recording.settled or recording.fully_read
        except Exception as raised:  # of a decoder or our own: the other recordings go on
            over = True
            # A recording that has been read is complete, even if closing it fails.
            if not recording.fully_read:
                error = fault(recording.name, raised)
        if over:
            reading.stop()
        with self.changed:
            if window is not None:
                self.put(recording, window, number=reading.number)
                reading.due_s = recording.arrived_s + seconds(window.end)
            if over:
                self._notes.append(Note(recording, released=True, error=error))
            else:
                heapq.heappush(self.readings, reading)
            self.changed.notify_all()


@dataclass(order=True)
class Reading:
    """A recording with windows left to read; the next one is due at `due_s`."""

    due_s: float
    number: int
    recording: Submission = field(compare=False)
    windows: Generator[Window, None, None] = field(compare=False)

    def stop(self) -> None:
        with suppress(Exception):
            self.windows.close()


@dataclass(frozen=True)
class Note:
    """A reader has released a recording, with an error if it failed; or a recording was cancelled."""

    recording: Submission
    released: bool = False
    error: ForescribeError | None = None
