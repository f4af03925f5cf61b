"""ReadAhead: recordings are read ahead of the model, in order of due time, one window at a time, so memory
does not grow with their length or number. By threads, or in the calling thread; events for the engine's
thread are queued as notes. Knows nothing of models.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from forescribe.speculative.device import keep_to_one_core

from ..errors import CapacityError, ForescribeError
from ..formats.transcript_parts import seconds
from ..segment.windows import Window
from .recording import PendingWindow, fault
from .submission import Submission


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
        self._threads = [
            threading.Thread(target=self._run, name=f"reader-{i}", daemon=True)
            for i in range(threads)
        ]

    # -- from any thread --------------------------------------------------------------------------

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def add(self, submission: Submission) -> None:
        """Queue a recording. Raises CapacityError once closed."""
        with self.changed:
            if self.closed:
                raise CapacityError("the session is closed")
            reading = Reading(
                submission.arrived_s, next(self._numbers), submission, submission.read()
            )
            heapq.heappush(self.readings, reading)
            self.changed.notify_all()

    def note(self, note: Note) -> None:
        with self.changed:
            self.notes.append(note)
            self.changed.notify_all()

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

    def next_due_s(self) -> float | None:
        """When the first of the windows that wait is due."""
        with self.changed:
            return self.ready[0].due_s if self.ready else None

    def take_windows(self, count: int) -> list[QueuedWindow]:
        """The windows that are due first."""
        with self.changed:
            taken = [heapq.heappop(self.ready) for _ in range(min(count, len(self.ready)))]
            self.changed.notify_all()  # the readers may go on
        return taken

    def put(self, submission: Submission, windows: Iterable[Window], since_s: float) -> None:
        """Queue windows that follow from others of a recording; they are due at `since_s` or later."""
        with self.changed:
            for window in windows:
                self._queue(submission, window, next(self._numbers), since_s)

    def clear(self) -> None:
        """Drop the windows that wait."""
        with self.changed:
            self.ready = []

    def abandon(self, submission: Submission) -> None:
        """Stop reading a recording: here if it is between two windows, otherwise as soon as its reader
        has finished the window."""
        with self.changed:
            for reading in self.readings:
                if reading.submission is submission:
                    self.readings.remove(reading)
                    heapq.heapify(self.readings)
                    _stop(reading)
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
                        _stop(reading)
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

    def read_next(self) -> float:
        """Read the window that is due first, in the calling thread; returns up to when its recording has
        been read."""
        reading = heapq.heappop(self.readings)
        self.read_window(reading)
        return reading.due_s

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
            _stop(reading)
        with self.changed:
            if window is not None:
                self._queue(submission, window, reading.number)
                reading.due_s = submission.arrived_s + seconds(window.end)
            if over:
                self.notes.append(Note(submission, released=True, error=error))
            else:
                heapq.heappush(self.readings, reading)
            self.changed.notify_all()

    def _queue(
        self, submission: Submission, window: Window, number: int, since_s: float = -math.inf
    ) -> None:
        due_s = max(since_s, submission.arrived_s + seconds(window.start))
        recording = submission.recording
        assert recording is not None  # it has been opened
        queued = QueuedWindow(recording, window, submission=submission, due_s=due_s, number=number)
        heapq.heappush(self.ready, queued)


@dataclass(order=True)
class Reading:
    """A recording with windows left to read; the next one is due at `due_s`."""

    due_s: float
    number: int
    submission: Submission = field(compare=False)
    windows: Generator[Window, None, None] = field(compare=False)


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


def _stop(reading: Reading) -> None:
    with suppress(Exception):
        reading.windows.close()
