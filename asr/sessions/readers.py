"""Readers: recordings are read ahead of the model, in threads of this process or in child processes.

`ReadAhead` is for a session: threads read recordings in order of due time, one window at a time, so memory
does not grow with their length or number. Events for the engine's thread are queued as notes.

`ReaderPool` is for a call: children decode recordings and cut them into windows.

    with ReaderPool(4, Cutting()) as pool:
        for outcome in transcriber.transcribe(pool.ahead(paths), options, open=pool.open): ...

A core decodes and cuts an mp3 at 350 times its length; a model that transcribes faster waits for audio
otherwise. The windows are those that reading in this process gives. Samples wait in unnamed files, 64 kB
per second, `spool_bytes` of them at most. What does not fit, and what no child has begun when its turn
comes, is read in this process, block by block: memory and disk are bounded whatever comes, and the first
recording is not waited for. `reading_ahead` gives a batch's transcriber such a pool.

Knows nothing of models.
"""

from __future__ import annotations

import heapq
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, cast

from forescribe.speculative.device import keep_to_one_core

from ..audio.containers import DEMUXERS
from ..audio.fork_server import Bounds, Cutting
from ..audio.inputs import WIDTH, DecodedFile, Input
from ..audio.opening import open_path
from ..audio.reading import Open, Recording, length_of, open_audio
from ..audio.sandbox import Decoders
from ..decode.options import Hook, Options, Outcome
from ..decode.recording import fault
from ..errors import CapacityError, ForescribeError, visible
from ..formats.transcript_parts import SAMPLE_RATE, seconds
from ..segment.windows import Window
from .submission import Submission

T = TypeVar("T")

SPOOL_BYTES = 4 << 30
"""Samples of 18 hours."""

AHEAD = 4
"""Recordings that are begun for each reader: of short ones several are used up while the next is read."""

DAY_S = 24 * 3600
MEMORY_BYTES = 4 << 30
"""Limits of a child. They end what hangs or grows without end; a person's own recordings need less."""

NO_ROOM = ("audio_too_long", "storage_full")
"""Where the samples do not fit into the spool, though the header promised it, or not on its disk."""

MOST_READERS = 8
"""Readers by default, at most: at 350 times for each, eight read mp3 faster than a model transcribes."""

OTHER_CORES = 2
"""Cores that readers leave to the model's own thread and to the rest of the process."""


class ReadAhead:
    """Recordings that are being read, and windows that wait for the model.

    `limit` windows that are due before the next one may wait until it is read. `changed` guards all
    attributes; methods acquire it themselves.
    """

    def __init__(self, limit: int, threads: int) -> None:
        self.limit = limit
        self.changed = threading.Condition()
        self.readings: list[Reading] = []
        self.ready: list[ReadWindow] = []
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

    def take_windows(self, count: int) -> list[ReadWindow]:
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
        heapq.heappush(self.ready, ReadWindow(due_s, number, submission, window))


@dataclass(order=True)
class Reading:
    """A recording with windows left to read; the next one is due at `due_s`."""

    due_s: float
    number: int
    submission: Submission = field(compare=False)
    windows: Generator[Window, None, None] = field(compare=False)


@dataclass(order=True)
class ReadWindow:
    """A window that waits to be encoded."""

    due_s: float
    number: int
    submission: Submission = field(compare=False)
    window: Window = field(compare=False)


@dataclass(frozen=True)
class Note:
    """For the engine's thread: the reader has released a recording (with an error, if it failed), or
    the recording was cancelled."""

    submission: Submission
    released: bool = False
    error: ForescribeError | None = None


def reading_ahead(
    transcriber: T, readers: int | None, *, recordings: int, on_cpu: bool
) -> T | ReadingTranscriber:
    """The transcriber with `readers` processes; unchanged for 0. None chooses: none on a CPU, whose cores the
    model uses, and none for a single recording, which is read as it is transcribed."""
    if readers is None:
        spare = len(os.sched_getaffinity(0)) - OTHER_CORES
        readers = 0 if on_cpu or recordings < 2 else max(1, min(MOST_READERS, spare))
    if readers == 0:
        return transcriber
    return ReadingTranscriber(cast(OpeningTranscriber, transcriber), readers)


class ReadingTranscriber:
    """`readers` processes decode recordings and cut them into windows. The transcripts are the same."""

    def __init__(self, transcriber: OpeningTranscriber, readers: int) -> None:
        self.transcriber, self.readers = transcriber, readers

    def transcribe(
        self, sources: Iterable[Any], options: Options | None = None, hook: Hook | None = None
    ) -> Iterator[Outcome]:
        """As of the transcriber. The processes end with the result."""
        chosen = options or Options()
        cutting = None
        if chosen.long_form != "sequential":
            cutting = Cutting(chosen.vad, chosen.windows)
        with ReaderPool(self.readers, cutting) as pool:
            yield from self.transcriber.transcribe(
                pool.ahead(sources), options, hook, open=pool.open
            )


class OpeningTranscriber(Protocol):
    """A transcriber that takes a function to open recordings with."""

    def transcribe(
        self,
        sources: Iterable[Any],
        options: Options | None = None,
        hook: Hook | None = None,
        *,
        open: Open = ...,
    ) -> Iterator[Outcome]: ...


class ReaderPool:
    """`readers` children at a time; `cutting` None only decodes. `folder` is that of the samples, None: where
    temporary files go. To be used from one thread."""

    def __init__(
        self,
        readers: int,
        cutting: Cutting | None,
        *,
        spool_bytes: int = SPOOL_BYTES,
        folder: Path | None = None,
    ) -> None:
        if readers < 1:
            raise ValueError(f"readers is {readers}; it must be 1 or more")
        self.readers, self.cutting, self.spool_bytes = readers, cutting, spool_bytes
        self._decoders = Decoders(readers, folder)
        self._threads = ThreadPoolExecutor(readers, thread_name_prefix="reader")
        self._waiting: deque[_Waiting] = deque()
        self._lock = threading.Lock()
        self._used = 0
        self._bounds = Bounds(
            max_s=spool_bytes / (SAMPLE_RATE * WIDTH),
            wall_s=DAY_S,
            cpu_s=DAY_S,
            memory_bytes=MEMORY_BYTES,
            demuxers=DEMUXERS,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the children, and drop what was read ahead."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._decoders.close()
        self._threads.shutdown()
        while self._waiting:
            self._drop(self._waiting.popleft())

    @property
    def used_bytes(self) -> int:
        """Bytes of samples in the spool, with what is reserved for recordings that are being read."""
        return self._used

    def ahead(self, sources: Iterable[Input]) -> Iterator[Input]:
        """The sources, in order; some that follow are being read already. Each is to be opened by `open`
        before the next is pulled. A source that is still being fetched (where the stream says so, `ready`) is
        waited for only if there is no other."""
        coming = iter(sources)
        first = next(coming, None)
        if first is not None:
            self._waiting.append(_Waiting(first, 0))
        while True:
            while len(self._waiting) < self.readers * AHEAD:
                if self._waiting and not getattr(coming, "ready", True):
                    break  # it is still being fetched
                source = next(coming, None)
                if source is None:
                    break
                self._waiting.append(_Waiting(source, self._size(source)))
            self._begin()
            if not self._waiting:
                return
            given = self._waiting[0]
            yield given.source
            if self._waiting and self._waiting[0] is given:  # the caller did not open it
                self._drop(self._waiting.popleft())

    def open(self, source: Input) -> Recording:
        """The recording of a source of `ahead`; any other one is opened here. Raises what `open_audio` and
        `Decoders.decode` raise."""
        if not self._waiting or self._waiting[0].source is not source:
            return open_audio(source)
        waiting = self._waiting.popleft()
        if waiting.decoded is None:
            return open_audio(source)
        if waiting.decoded.cancel():  # the children have others
            self._release(waiting.size)
            return open_audio(source)
        try:
            decoded = waiting.decoded.result()
        except BaseException as error:
            self._release(waiting.size)
            if isinstance(error, ForescribeError) and error.code in NO_ROOM:
                return open_audio(source)
            raise
        return _Spooled(decoded, self, waiting.size)

    def _size(self, source: Input) -> int:
        """Bytes to reserve for the samples of a source; 0 for one that is to be read in this process."""
        if not isinstance(source, str | os.PathLike):
            return 0
        length = length_of(os.fspath(source))  # 0 for "-", pipes and what is missing
        size = round(length * SAMPLE_RATE * WIDTH)
        return size if size <= self.spool_bytes else 0

    def _begin(self) -> None:
        """Begin to read what fits into the spool, in order."""
        for waiting in self._waiting:
            if waiting.decoded is not None or not waiting.size:
                continue
            with self._lock:
                if self._used + waiting.size > self.spool_bytes:
                    return
                self._used += waiting.size
            waiting.decoded = self._threads.submit(self._decode, waiting.source)

    def _decode(self, source: Input) -> DecodedFile:
        assert isinstance(source, str | os.PathLike)
        path, name = Path(source), visible(str(source))
        with open_path(path, name) as file:
            return self._decoders.decode(file, self._bounds, name=name, cutting=self.cutting)

    def _drop(self, waiting: _Waiting) -> None:
        if waiting.decoded is None:
            return
        self._release(waiting.size)
        if not waiting.decoded.cancel() and waiting.decoded.exception() is None:
            waiting.decoded.result().close()

    def _release(self, size: int) -> None:
        with self._lock:
            self._used -= size


class _Spooled(Recording):
    """A recording in the spool, which it leaves when it is closed."""

    def __init__(self, decoded: DecodedFile, pool: ReaderPool, size: int) -> None:
        self._held: tuple[DecodedFile, ReaderPool, int] | None = (decoded, pool, size)
        try:
            super().__init__(decoded.reader(), name=decoded.name)
        except BaseException:
            self._leave()
            raise

    def close(self) -> None:
        super().close()
        self._leave()

    def _leave(self) -> None:
        if self._held is not None:
            (decoded, pool, size), self._held = self._held, None
            decoded.close()
            pool._release(size)


@dataclass(eq=False)
class _Waiting:
    """A source that was pulled; `decoded` is None as long as it does not fit into the spool."""

    source: Input
    size: int  # bytes to reserve; 0: not for the spool
    decoded: Future[DecodedFile] | None = None


def _stop(reading: Reading) -> None:
    with suppress(Exception):
        reading.windows.close()
