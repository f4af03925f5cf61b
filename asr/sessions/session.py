"""Session: recordings from any thread, at any time, share one transcriber's slots.

    session = Session(transcriber)
    threading.Thread(target=session.run).start()        # the one thread that touches the model
    submission = session.submit("memo.flac", Options(), listener)
    session.cancel(submission)

Windows are shared out, not recordings. A window's turn comes at its *due time*: when its recording
arrived, plus where in it the window starts. So a short upload passes an hour that came before it,
and the hour still gets on at real time's pace or better, however many short ones follow.

Reading (decoding audio, finding speech) happens in a few threads of its own, ahead of the model by a
fixed number of windows, so memory does not grow with the length or the number of recordings. Knows
nothing of HTTP.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from forescribe.speculative.device import keep_to_one_core
from forescribe.speculative.engine.stats import Stats
from forescribe.speculative.requests import Request

from ..audio.reading import Input
from ..decode.accounting import fault
from ..decode.call import Job
from ..decode.encoding import Heard, hear
from ..decode.isolation import Ended
from ..decode.options import Options
from ..decode.outcome import Outcome
from ..errors import CapacityError, ForescribeError
from ..formats.transcript import seconds
from ..segment.vad import SileroDetector
from ..segment.windows import Window
from .submission import Listener, Submission, Tap

if TYPE_CHECKING:
    from ..decode.transcriber import Transcriber


T = TypeVar("T")

LOG = logging.getLogger(__name__)

LOOK_S = 5.0
"""How old the figures may be that others see. Reading them waits for the device, and gives back what its
stopwatches hold."""


@dataclass(order=True)
class _Reading:
    """A recording that has windows left to read; the next is due at `due_s`."""

    due_s: float
    number: int
    submission: Submission = field(compare=False)
    windows: Generator[Window, None, None] = field(compare=False)


@dataclass(order=True)
class _Ready:
    """A window that was read."""

    due_s: float
    number: int
    submission: Submission = field(compare=False)
    window: Window = field(compare=False)


@dataclass(order=True)
class _Encoded:
    """A window that was heard: its request for the engine."""

    due_s: float
    number: int
    submission: Submission = field(compare=False)
    request: Request = field(compare=False)


@dataclass(frozen=True)
class _News:
    """For the engine's thread: the reader has let go of a recording (with an error, if it failed),
    or somebody cancelled it."""

    submission: Submission
    let_go: bool = False
    error: ForescribeError | None = None


class Session:
    """Shares a transcriber among recordings. `run` has the engine's thread; all else may be called
    from any.

    `readers` threads decode audio. While a session runs, nobody else may use the transcriber.
    """

    def __init__(
        self,
        transcriber: Transcriber,
        *,
        readers: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.transcriber, self.clock = transcriber, clock
        if transcriber.detector is None:
            transcriber.detector = SileroDetector()  # now: readers would each make one
        self.ahead = 2 * transcriber.batch
        """Windows that may wait for the model, per place in the queue."""
        self._changed = threading.Condition()  # guards what follows
        self._readings: list[_Reading] = []
        self._ready: list[_Ready] = []
        self._news: deque[_News] = deque()
        self._closed = False
        self._numbers = count()
        self.stats = Stats()
        """Of all so far, as it was a moment ago: for any thread."""
        self._began_s: float | None = None  # the round that is being played
        # Of the engine's thread alone:
        self._looked_s = clock()
        self._encoded: list[_Encoded] = []
        self._owners: dict[Job, Submission] = {}
        self._live: set[Submission] = set()
        self._readers = [
            threading.Thread(target=self._read, name=f"reader-{i}", daemon=True)
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
    ) -> Submission:
        """Queues a recording; `tap` hears its samples too, on a reader's thread. Raises UsageError for
        options that the model cannot serve, CapacityError once the session is closed; all else is in
        the outcome."""
        submission = Submission(
            self.transcriber, source, options, listener, arrived_s=self.clock(), name=name, tap=tap
        )
        return self.enter(submission)

    def enter(self, submission: Submission) -> Submission:
        """Queues a submission that somebody else has made, of this session's transcriber. Raises
        CapacityError once the session is closed."""
        with self._changed:
            if self._closed:
                raise CapacityError("the session is closed")
            self._live.add(submission)
            reading = _Reading(
                submission.arrived_s, next(self._numbers), submission, submission.read()
            )
            heapq.heappush(self._readings, reading)
            self._changed.notify_all()
        return submission

    def cancel(self, submission: Submission) -> None:
        """Its rows are free before the next round; the listener hears when all is let go."""
        with self._changed:
            self._news.append(_News(submission))
            self._changed.notify_all()

    def close(self) -> None:
        """Ends `run` after its round. What is still under way fails with CapacityError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def standing_s(self) -> float:
        """Since when the round that is being played is under way; 0 between rounds."""
        began_s = self._began_s
        return 0.0 if began_s is None else self.clock() - began_s

    # -- the engine's thread ----------------------------------------------------------------------

    def run(self) -> None:
        """Serves until the session is closed. A fault of the model fails what is under way, nothing
        that comes later. Raises BrokenError once the device has failed."""
        for reader in self._readers:
            reader.start()
        try:
            while self._wait():
                self._began_s = self.clock()
                try:
                    self._round()
                except Exception as error:
                    self._fail_all(error)
                self._began_s = None
                if self.transcriber.engine.broken is not None:
                    raise self.transcriber.engine.broken
        finally:
            self.close()
            for reader in self._readers:
                reader.join()
            self._fail_all(CapacityError("the service is stopping"))
            self._hear()

    def _wait(self) -> bool:
        """Until there is something to do; False once closed."""
        with self._changed:
            while not (self._closed or self._news or self._ready or self._encoded):
                if not self.transcriber.slots.idle:
                    break
                self._changed.wait()
            return not self._closed

    def _round(self) -> None:
        self._hear()
        self._feed()
        for ended in self.transcriber.slots.step():
            self._end(ended)
        if self.clock() - self._looked_s >= LOOK_S or self.transcriber.slots.idle:
            self.stats, self._looked_s = self.transcriber.stats(), self.clock()

    def _hear(self) -> None:
        with self._changed:
            news, self._news = self._news, deque()
        for item in news:
            submission = item.submission
            submission.let_go |= item.let_go
            if item.error is not None:
                self._settle(submission, Outcome(submission.source, error=item.error))
            elif item.let_go:
                self._guarded(submission, submission.look)
            else:
                self._settle(submission, None)
            self._release(submission)

    def _end(self, ended: Ended) -> None:
        submission = self._owners.get(ended.request.tag.job)
        if submission is not None:
            self._guarded(submission, lambda: submission.take(ended))
            self._release(submission)

    def _guarded(self, submission: Submission, act: Callable[[], T]) -> T | None:
        """A fault in one recording's affairs is that recording's."""
        try:
            return act()
        except Exception as error:
            error = fault(submission.called, error)
            self._settle(submission, Outcome(submission.source, error=error))
            return None

    def _settle(self, submission: Submission, outcome: Outcome | None) -> None:
        submission.settle(outcome)
        with self._changed:
            self._abandon(submission)

    def _abandon(self, submission: Submission) -> None:
        """Nobody reads on. A reading that is between two windows ends here, one that is under way
        when its reader comes back."""
        for reading in self._readings:
            if reading.submission is submission:
                self._readings.remove(reading)
                heapq.heapify(self._readings)
                with suppress(Exception):
                    reading.windows.close()
                submission.let_go = True
                return

    def _release(self, submission: Submission) -> None:
        """Once all is settled and nobody reads it any more, the listener hears so."""
        if not (submission.settled and submission.let_go and submission in self._live):
            return
        self._live.remove(submission)
        if submission.job is not None:
            self._owners.pop(submission.job, None)
        try:
            submission.listener.ended(submission.outcome)
        except Exception:  # the listener's own; nobody else may suffer
            LOG.exception("a listener failed at the end of %s", submission.called)

    def _fail_all(self, error: Exception) -> None:
        with self._changed:
            live, self._ready = list(self._live), []
        self._encoded = []
        for submission in live:
            told = fault(submission.called, error)
            self._settle(submission, Outcome(submission.source, error=told))
            self._release(submission)

    # -- windows in -------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Fills the free rows with the windows that are due first."""
        while self.transcriber.slots.free:
            if self._hurry():
                self._encode()
            if not self._encoded:
                return
            chosen = heapq.heappop(self._encoded)
            if not chosen.submission.settled:
                self.transcriber.slots.submit(chosen.request)

    def _hurry(self) -> bool:
        """Whether a window that nobody has encoded yet is due before all that are."""
        with self._changed:
            return bool(self._ready) and not (
                self._encoded and self._encoded[0].due_s <= self._ready[0].due_s
            )

    def _encode(self) -> None:
        """Hears the next windows of all recordings together, up to a batch."""
        with self._changed:
            size = min(self.transcriber.batch, len(self._ready))
            group = [heapq.heappop(self._ready) for _ in range(size)]
            self._changed.notify_all()  # the readers may go on
        group = [ready for ready in group if not ready.submission.settled]
        if not group:
            return
        self.transcriber.watch.start()
        wanting = [ready.submission.wants_language for ready in group]
        heard = hear(self.transcriber, [ready.window.samples for ready in group], wanting)
        self.transcriber.watch.mark("encode")
        for ready, one in zip(group, heard, strict=True):
            self._enter(ready, one)

    def _enter(self, ready: _Ready, heard: Heard | Exception) -> None:
        """Queues a window's request for the engine, unless a fault has taken it."""
        submission = ready.submission
        if submission.settled:  # by a window before this one
            return
        request = self._guarded(submission, lambda: submission.request(ready.window, heard))
        if request is not None:
            self._owners[request.tag.job] = submission
            heapq.heappush(self._encoded, _Encoded(ready.due_s, ready.number, submission, request))
        self._release(submission)

    # -- the readers' threads ---------------------------------------------------------------------

    def _read(self) -> None:
        keep_to_one_core()
        while True:
            with self._changed:
                while not self._closed and not self._readable():
                    self._changed.wait()
                if self._closed:
                    for reading in self._readings:
                        reading.submission.let_go = True
                        with suppress(Exception):
                            reading.windows.close()
                    self._readings = []
                    return
                reading = heapq.heappop(self._readings)
            self._read_on(reading)

    def _readable(self) -> bool:
        """Whether the window that is due next may be read: few that are due before it wait."""
        if not self._readings:
            return False
        due_s = self._readings[0].due_s
        return sum(ready.due_s <= due_s for ready in self._ready) < self.ahead

    def _read_on(self, reading: _Reading) -> None:
        """Reads one window; whatever happens, the recording is queued again or let go."""
        submission, window = reading.submission, None
        error: ForescribeError | None = None
        try:
            window = next(reading.windows, None)
            over = window is None or submission.settled or _read_out(submission)
        except Exception as raised:  # a fault of ours, or of a decoder: the others go on
            over = True
            if not _read_out(submission):  # else it is complete, whatever closing it says
                error = fault(submission.called, raised)
        if over:
            with suppress(Exception):
                reading.windows.close()
        with self._changed:
            if window is not None:
                due_s = submission.arrived_s + seconds(window.start)
                heapq.heappush(self._ready, _Ready(due_s, reading.number, submission, window))
                reading.due_s = submission.arrived_s + seconds(window.end)
            if over:
                self._news.append(_News(submission, let_go=True, error=error))
            else:
                heapq.heappush(self._readings, reading)
            self._changed.notify_all()


def _read_out(submission: Submission) -> bool:
    """The last window has come: the recording need not wait for its turn to learn that."""
    return submission.job is not None and submission.job.read
