"""A worker: one engine on one accelerator or a share of the cores, kept filled with windows of many
recordings.

    worker = prepared_worker(order)      # models, options and speakers as in `forescribe transcribe`
    report = worker.exchange([Source("a.mp3"), Source("b.mp3")], wait_s=1.0)

A thread runs the transcriber over the queue: recordings are pulled as rows become free, those at
locations from a spool that fetches them ahead. `exchange` adds recordings and returns what has ended; it
waits for something to tell, at most `wait_s`. Where the order says so, the worker writes files and records
itself, in threads beside the engine, and tells that they are written. What goes to a worker and comes back is
pickled, small and without samples. Knows nothing of Ray.
"""

from __future__ import annotations

import gc
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from forescribe.asr.batch import fingerprint
from forescribe.asr.batch.batch import WAITING, WRITERS
from forescribe.asr.batch.spool import LocalCopy, Spool
from forescribe.asr.child_process import portable
from forescribe.asr.decode.options import Outcome
from forescribe.asr.errors import (
    AudioError,
    CapacityError,
    ForescribeError,
    out_of_memory,
)
from forescribe.asr.records.sources import Source
from forescribe.asr.storage.locations import Entry
from forescribe.asr.storage.stores import Stores, telling
from forescribe.speculative.errors import BrokenError
from forescribe.speculative.stats import Stats

from .order import WorkOrder, check_machine
from .results import Assigned, WorkerResults

if TYPE_CHECKING:
    from forescribe.asr.batch.batch import BatchTranscriber, MakeTranscriber
    from forescribe.asr.decode.options import Progress
    from forescribe.asr.decode.transcriber import Transcriber

LOG = logging.getLogger(__name__)

STATS_S = 1.0
"""How old the statistics of a report may be: reading them waits for the device."""


@dataclass(frozen=True)
class Report:
    """What has happened on a worker since its last report.

    `finished` are the outcomes of recordings, by path; of those whose files and record are written already,
    they are `Written`. `returned` are recordings that it will not finish, because its machine is taken away.
    `error` is a reason for which the run cannot go on, such as a language that the model does not have;
    `broken` says that the worker is of no more use, for instance because its GPU does not answer. `stats` are
    those since it started.
    """

    finished: tuple[Outcome, ...] = ()
    returned: tuple[str, ...] = ()
    progress: tuple[Progress, ...] = ()
    notices: tuple[str, ...] = ()
    stats: Stats = field(default_factory=Stats)
    leaving: bool = False
    broken: str | None = None
    error: Exception | None = None


def prepared_worker(order: WorkOrder) -> ClusterWorker:
    """Load the models of an order. Raises UsageError for another version or storage that this machine does
    not see, ModelError for weights that are missing or differ."""
    from forescribe.asr.audio.reader_pool import readers_for
    from forescribe.asr.batch.batch import TranscriberFactory

    check_machine(order)

    def load(size: int) -> Transcriber:
        from forescribe.asr.decode.transcriber import Transcriber

        _set_threads(order)
        return Transcriber.load(**order.models, batch=size, network=order.network)

    speakers = order.speakers
    with_speakers = (
        speakers.load(device=order.device, network=order.network) if speakers is not None else None
    )
    factory = TranscriberFactory(load)
    factory(order.batch)  # now, so that errors of the model are those of the start

    def make(size: int) -> BatchTranscriber:
        _set_threads(order)
        current = factory.current
        if current is None or current.batch != size:
            current = factory(size)
        readers = readers_for(
            order.readers,
            recordings=2,  # or more, which is not known here
            on_cpu=current.whisper.device.kind == "cpu",
        )
        reading = current.with_readers(readers)
        return reading if with_speakers is None else with_speakers(reading)

    stores, results, notices = Stores(), None, tuple[str, ...]()
    if order.writing is not None:
        try:
            results = WorkerResults(order.writing, stores)
        except ForescribeError as error:
            notices = (
                f"{socket.gethostname()} cannot write results, so this command writes those of its "
                f"workers: {error}",
            )
    return ClusterWorker(order, make, stats=factory.stats, results=results, notices=notices)


class ClusterWorker:
    """Transcribes the recordings of one process. `make` makes a transcriber for a batch size, as for
    `Batch.run`.

    `exchange` and `drain` are for any thread.
    """

    def __init__(
        self,
        order: WorkOrder,
        make: MakeTranscriber,
        *,
        stats: Callable[[], Stats | None] = lambda: None,
        results: WorkerResults | None = None,
        notices: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.order, self.make, self.clock = order, make, clock
        self.results, self._pool = results, ThreadPoolExecutor(WRITERS, "write")
        self._writing = 0  # recordings whose results are being written
        self._may_write = threading.BoundedSemaphore(WAITING)
        self.size, self._may_halve = order.batch, order.batch > 1
        self._read_stats = stats
        self._changed = threading.Condition()  # guards everything below
        self._queue: deque[Source] = deque()
        # By the identity of what the transcriber was given; the dictionary keeps it alive.
        self._begun: dict[int, tuple[_Path | LocalCopy, _Begun]] = {}
        self._spool: Spool | None = None
        self._has_room = True  # in the spool, for the recording that was asked for last
        self._report = Report(notices=notices)
        self._stats_s = -STATS_S
        self._leave_by_s: float | None = None  # when what has begun is given back too
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="cluster worker", daemon=True)
        self._thread.start()

    # -- any thread -------------------------------------------------------------------------------

    def exchange(self, sources: Sequence[Source] = (), wait_s: float = 0.0) -> Report:
        """Add recordings; return what has happened since the last call, after at most `wait_s` seconds.

        While draining, new recordings are given back at once.
        """
        self._fetch_ahead(sources)
        with self._changed:
            self._queue.extend(sources)
            if self._leave_by_s is not None:
                self._give_back()
            self._changed.notify_all()
            self._changed.wait_for(self._has_news, wait_s)
            if self._leave_by_s is not None:
                self._give_back()
            report, self._report = self._report, Report(stats=self._report.stats)
            return replace(report, leaving=self._leave_by_s is not None)

    def drain(self, within_s: float) -> None:
        """Begin nothing more: the machine is taken away. What has begun has `within_s` seconds to end
        before it is given back. May be called from a signal handler."""
        # Without the lock, which the interrupted code may hold: a number is set in one step.
        if self._leave_by_s is None:
            self._leave_by_s = self.clock() + within_s

    @property
    def idle(self) -> bool:
        """Whether nothing waits, nothing has begun and nothing is being written."""
        with self._changed:
            return not self._queue and not self._begun and not self._writing

    def close(self) -> None:
        """End the thread after the call under way; what it holds is dropped."""
        with self._changed:
            self._queue.clear()
            self._closed = True
            self._changed.notify_all()
        self._pool.shutdown(wait=False)
        if self._spool is not None:
            self._spool.close()

    def _has_news(self) -> bool:
        report = self._report
        late = self._leave_by_s is not None and (
            bool(self._queue)
            or not (self._begun or self._writing)
            or self.clock() >= self._leave_by_s
        )
        return bool(report.finished or report.returned or report.error or report.broken or late)

    def _give_back(self) -> None:
        """Give back what has not begun and, when time is up, the rest; the lock is held."""
        assert self._leave_by_s is not None
        returned = [source.path for source in self._queue]
        self._queue.clear()
        if self.clock() >= self._leave_by_s:
            returned += [begun.source.path for _, begun in self._begun.values()]
            self._begun.clear()  # outcomes that come later find nothing, and are dropped
        self._report = replace(self._report, returned=(*self._report.returned, *returned))

    # -- the engine's thread ----------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait_for_tasks():
            try:
                self._transcribe()
                self._fail_begun("the transcriber left it without an outcome")
            except Exception as error:
                if not self._recover(error):
                    return

    def _transcribe(self) -> None:
        """One call of the transcriber, over what waits and what comes while it runs."""
        hook = self._progressed if self.order.progress else None
        transcriber = self.make(self.size)
        outcomes = transcriber.transcribe(self._pull(), self.order.options, hook)
        try:
            for outcome in outcomes:
                if cause := _memory(outcome):
                    raise cause  # the batch is too large, not this recording
                self._ended(outcome)
        finally:
            if isinstance(outcomes, Generator):
                outcomes.close()  # what is left in the engine must not outlive the call

    def _wait_for_tasks(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            return not self._closed

    def _pull(self) -> Iterator[_Path | LocalCopy]:
        """Recordings as the transcriber has room for them. Ends where none waits: rows in work must not wait
        for one; the next call takes what comes later."""
        while True:
            with self._changed:
                if not self._queue or self._leave_by_s is not None:
                    return
                begun = _Begun(self._queue.popleft())
                path = _Path(begun.source.path)
                given: _Path | LocalCopy = path
                self._begun[id(path)] = path, begun
            if begun.source.location is not None:
                if (copy := self._copy(path, begun)) is None:
                    if not self._has_room:
                        return
                    continue
                given = copy
            else:
                # Hashed before it is read: a recording that grows in the meantime does not count as done.
                begun.content = fingerprint.content(path)
            yield given

    def _copy(self, path: _Path, begun: _Begun) -> LocalCopy | None:
        """The local copy of a recording at a location; None where it cannot be fetched, or not yet."""
        assert self._spool is not None
        copy, error = None, None
        try:
            copy = self._spool.take(begun.source)
        except ForescribeError as refused:
            error = refused
        with self._changed:
            if self._begun.pop(id(path), None) is None:  # given back in the meantime
                return None
            if copy is not None:
                begun.content, begun.entry = copy.content, copy.entry
                self._begun[id(copy)] = copy, begun
            elif error is not None:
                self._add(Outcome(str(path), error=error))
            else:  # no room until the recordings of this call are released
                self._queue.appendleft(begun.source)
            self._has_room = copy is not None or error is not None
        return copy

    def _fetch_ahead(self, sources: Sequence[Source]) -> None:
        remote = [source for source in sources if source.location is not None]
        if not remote or self._leave_by_s is not None:
            return
        if self._spool is None:
            stores = Stores(telling(self._notice))
            self._spool = Spool(stores, place=self.order.spool, limit=self.order.spool_bytes)
        self._spool.order(remote)

    def _notice(self, text: str) -> None:
        with self._changed:
            self._report = replace(self._report, notices=(*self._report.notices, text))

    def _ended(self, outcome: Outcome) -> None:
        with self._changed:
            _, begun = self._begun.pop(id(outcome.source), (None, None))
            if begun is None:
                return
            writes = self.results is not None and isinstance(begun.source, Assigned)
            self._writing += writes
            if not writes:
                self._add(begun.finished(outcome))
        if writes:
            self._may_write.acquire()  # many transcripts that wait would fill the memory
            self._pool.submit(self._write, begun, outcome)
        self._update_stats()

    def _write(self, begun: _Begun, outcome: Outcome) -> None:
        """Write the files and the record of a recording, in a thread of the pool."""
        source = begun.source
        assert self.results is not None and isinstance(source, Assigned)
        if source.location is not None and source.entry is None and begun.entry is not None:
            source = replace(source, entry=begun.entry)
        try:
            error = _portable_or_none(outcome.error)
            given = Outcome(source.path, outcome.transcript, error, outcome.wall_s)
            finished: Outcome = self.results.write(source, given, begun.content)
        except Exception as error:  # a bug here: the command writes it
            LOG.exception("the results of %s cannot be written here", source.path, exc_info=error)
            finished = begun.finished(outcome)
        finally:
            self._may_write.release()
        with self._changed:
            self._writing -= 1
            self._add(finished)

    def _add(self, finished: Outcome) -> None:
        finished = replace(finished, error=_portable_or_none(finished.error))
        self._report = replace(self._report, finished=(*self._report.finished, finished))
        if self._spool is not None:
            self._spool.release(finished.name)
        self._changed.notify_all()

    def _progressed(self, progress: Progress) -> None:
        source = str(progress.source)
        own = replace(progress, source=source, stats=Stats())
        with self._changed:
            merged = {str(each.source): each for each in self._report.progress}
            if source in merged:
                before = merged[source]
                own = replace(
                    own,
                    segments=(*before.segments, *own.segments),
                    spoken=(*before.spoken, *own.spoken),
                )
            self._report = replace(self._report, progress=tuple((merged | {source: own}).values()))
        self._update_stats()

    def _update_stats(self) -> None:
        if self.clock() - self._stats_s < STATS_S and not self.idle:
            return
        self._stats_s = self.clock()
        stats = self._read_stats()
        if stats is not None:
            with self._changed:
                self._report = replace(self._report, stats=stats)

    def _recover(self, error: Exception) -> bool:
        """After an exception of the transcriber: whether the worker goes on."""
        if isinstance(error, BrokenError):
            return self._end(broken=str(error))
        if not out_of_memory(error):
            return self._end(error=portable(error))
        full = f"out of memory with {self.size} windows at a time"
        if self._may_halve:
            self.size, self._may_halve = self.size // 2, False
            self._notice(f"{full} on a worker: going on with {self.size}")
            with self._changed:
                self._queue.extendleft(reversed([b.source for _, b in self._begun.values()]))
                self._begun.clear()
        else:
            self._fail_begun(
                f"{full}; try a smaller --batch-size or --dtype float16", kind=CapacityError
            )
        del error
        gc.collect()  # the frames of the failed call hold its tensors
        return True

    def _end(self, *, error: Exception | None = None, broken: str | None = None) -> bool:
        with self._changed:
            self._report = replace(self._report, error=error, broken=broken)
            self._closed = True
            self._changed.notify_all()
        return False

    def _fail_begun(self, reason: str, kind: type[ForescribeError] = AudioError) -> None:
        code = "overloaded" if kind is CapacityError else "internal_error"
        with self._changed:
            for _, begun in self._begun.values():
                error = kind(f"{begun.source.path}: {reason}", code=code)  # type: ignore[arg-type]
                self._add(Outcome(begun.source.path, error=error))
            self._begun.clear()


def _set_threads(order: WorkOrder) -> None:
    """A number of threads holds for the thread that sets it."""
    if order.threads:
        import torch

        torch.set_num_threads(order.threads)


class _Path(str):
    """The path of a recording. Outcomes are matched by identity: a path may be asked for twice."""


@dataclass
class _Begun:
    """A recording that the transcriber has, with what was read of it."""

    source: Source
    content: str | None = None
    entry: Entry | None = None

    def finished(self, outcome: Outcome) -> Outcome:
        """The outcome as it is sent, without what only this process has."""
        return Outcome(
            self.source.path,
            outcome.transcript,
            outcome.error,
            outcome.wall_s,
            content=self.content,
            entry=self.entry,
        )


def _portable_or_none(error: ForescribeError | None) -> ForescribeError | None:
    return None if error is None else cast(ForescribeError, portable(error))


def _memory(outcome: Outcome) -> BaseException | None:
    """What ran out of memory, if that ended a recording."""
    cause = outcome.error and outcome.error.__cause__
    return cause if cause is not None and out_of_memory(cause) else None
