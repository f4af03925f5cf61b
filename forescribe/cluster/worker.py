"""A worker: one engine on one accelerator or a share of the cores, kept filled with windows of many
recordings.

    worker = prepared_worker(order)      # models, options and speakers as in `forescribe transcribe`
    report = worker.exchange([Source("a.mp3"), Source("b.mp3")], wait_s=1.0)

A worker that could give other results than one machine, because its versions or weights differ, refuses the
run. A thread runs the transcriber over the queue: recordings are pulled as rows become free, those at
locations from a spool that fetches them ahead. `exchange` adds recordings and returns what has ended; it
waits for something to tell, at most `wait_s`. What goes to a worker and comes back is pickled, small and
without samples. Knows nothing of Ray.
"""

from __future__ import annotations

import gc
import os
import pickle
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from forescribe.asr.batch import fingerprint
from forescribe.asr.batch.spool import LocalCopy, Spool
from forescribe.asr.errors import (
    AudioError,
    CapacityError,
    ForescribeError,
    ModelError,
    UsageError,
    out_of_memory,
)
from forescribe.asr.records.sources import Source
from forescribe.asr.storage.locations import Entry
from forescribe.asr.storage.stores import Stores, telling
from forescribe.speculative.errors import BrokenError, SpeculativeError
from forescribe.speculative.stats import Stats

if TYPE_CHECKING:
    from forescribe.asr.batch.batch import BatchTranscriber, MakeTranscriber
    from forescribe.asr.decode.options import Options, Outcome, Progress
    from forescribe.asr.decode.transcriber import Transcriber
    from forescribe.asr.formats.transcript import Transcript

    from ..cli.speaker_options import SpeakerOptions

STATS_S = 1.0
"""How old the statistics of a report may be: reading them waits for the device."""


@dataclass(frozen=True)
class WorkOrder:
    """What every worker of a run does: `models` are the arguments of `Transcriber.load`.

    `weights` is the fingerprint of the target's files as the driver sees them; a worker with other files
    refuses. `folder` is the driver's working folder, against which paths are read. `probe` is a file that
    every worker must see.
    """

    version: str
    models: Mapping[str, Any]
    options: Options
    batch: int = 8
    threads: int = 0
    readers: int | None = None
    speakers: SpeakerOptions | None = None
    device: str = "auto"
    network: bool = True
    weights: str | None = None
    spool: str | None = None
    spool_bytes: int | None = None
    folder: str | None = None
    probe: str | None = None
    progress: bool = False  # whether windows are reported


@dataclass(frozen=True)
class Finished:
    """A recording that has ended on a worker. `content` is the SHA-256 of the bytes it was made from, and
    `entry` what its store says about them."""

    path: str
    transcript: Transcript | None
    error: ForescribeError | None
    wall_s: float
    content: str | None
    entry: Entry | None = None


@dataclass(frozen=True)
class WorkerInfo:
    """A worker that has loaded its models."""

    host: str
    process: int
    device: str


@dataclass(frozen=True)
class Report:
    """What has happened on a worker since its last report.

    `returned` are recordings that it will not finish, because its machine is taken away. `error` is a reason
    for which the run cannot go on, such as a language that the model does not have; `broken` says that the
    worker is of no more use, for instance because its GPU does not answer. `stats` are those since it
    started.
    """

    finished: tuple[Finished, ...] = ()
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
    from forescribe.asr.batch.batch import TranscriberFactory
    from forescribe.asr.sessions.readers import reading_ahead

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
        return reading_ahead(
            current if with_speakers is None else with_speakers(current),
            order.readers,
            recordings=2,  # or more, which is not known here
            on_cpu=current.whisper.device.kind == "cpu",
        )

    return ClusterWorker(order, make, stats=factory.stats)


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.order, self.make, self.clock = order, make, clock
        self.size, self._may_halve = order.batch, order.batch > 1
        self._read_stats = stats
        self._changed = threading.Condition()  # guards everything below
        self._queue: deque[Source] = deque()
        # By the identity of what the transcriber was given; the dictionary keeps it alive.
        self._begun: dict[int, tuple[_Path | LocalCopy, _Begun]] = {}
        self._spool: Spool | None = None
        self._has_room = True  # in the spool, for the recording that was asked for last
        self._report = Report()
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
        """Whether nothing waits and nothing has begun."""
        with self._changed:
            return not self._queue and not self._begun

    def close(self) -> None:
        """End the thread after the call under way; what it holds is dropped."""
        with self._changed:
            self._queue.clear()
            self._closed = True
            self._changed.notify_all()
        if self._spool is not None:
            self._spool.close()

    def _has_news(self) -> bool:
        report = self._report
        late = self._leave_by_s is not None and (
            bool(self._queue) or not self._begun or self.clock() >= self._leave_by_s
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
                self._add(Finished(str(path), None, error, 0.0, None))
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
            self._add(
                Finished(
                    begun.source.path,
                    outcome.transcript,
                    outcome.error,
                    outcome.wall_s,
                    begun.content,
                    begun.entry,
                )
            )
        self._update_stats()

    def _add(self, finished: Finished) -> None:
        finished = replace(finished, error=_portable_or_none(finished.error))
        self._report = replace(self._report, finished=(*self._report.finished, finished))
        if self._spool is not None:
            self._spool.release(finished.path)
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
                self._add(Finished(begun.source.path, None, error, 0.0, None))
            self._begun.clear()


def check_machine(order: WorkOrder) -> None:
    """Check that this machine gives the driver's results: same version, same files, same weights."""
    host, own = socket.gethostname(), version("forescribe")
    if own != order.version:
        raise UsageError(
            f"{host} has forescribe {own} and this command is {order.version}: install the same version "
            "on all machines of the cluster"
        )
    if order.folder is not None:
        if os.path.isdir(order.folder):
            os.chdir(order.folder)  # relative paths, in messages too, are those of the command
        elif order.probe is not None and not os.path.isabs(order.probe):
            raise _unseen(order, host)
    if order.probe is not None and not os.path.exists(order.probe):
        raise _unseen(order, host)
    _check_weights(order, host)


def portable(error: Exception) -> ForescribeError | SpeculativeError:
    """An error as it can be sent to the driver: those of others, and some of ours, do not survive
    pickling."""
    if not isinstance(error, ForescribeError | SpeculativeError):
        return ForescribeError(f"a worker failed with {type(error).__name__}: {error}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        code = error.code if isinstance(error, ForescribeError) else None
        return ForescribeError(str(error), code=code)
    return error


def _set_threads(order: WorkOrder) -> None:
    """A number of threads holds for the thread that sets it."""
    if order.threads:
        import torch

        torch.set_num_threads(order.threads)


def _unseen(order: WorkOrder, host: str) -> UsageError:
    return UsageError(
        f"{host} does not see {order.probe}: recordings have to be on storage that all machines of the "
        "cluster mount at the same place, or in object storage (s3://...)"
    )


def _check_weights(order: WorkOrder, host: str) -> None:
    if order.weights is None:
        return
    from forescribe.asr.batch import fingerprint
    from forescribe.asr.model.presets import locate, resolve
    from forescribe.speculative.models.hub import find

    target = resolve(order.models["model"], order.models["draft"]).target
    folder = locate(target) if order.network else find(target)
    if folder is not None and fingerprint.weights(folder) != order.weights:
        raise ModelError(
            f"{host} has other weights of {target} than this machine: results would depend on the "
            "machine. Load the same revision on all of them",
            code="model_mismatch",
        )


class _Path(str):
    """The path of a recording. Outcomes are matched by identity: a path may be asked for twice."""


@dataclass
class _Begun:
    """A recording that the transcriber has, with what was read of it."""

    source: Source
    content: str | None = None
    entry: Entry | None = None


def _portable_or_none(error: ForescribeError | None) -> ForescribeError | None:
    sent = None if error is None else portable(error)
    assert not isinstance(sent, SpeculativeError)  # none of ours becomes one of those
    return sent


def _memory(outcome: Outcome) -> BaseException | None:
    """What ran out of memory, if that ended a recording."""
    cause = outcome.error and outcome.error.__cause__
    return cause if cause is not None and out_of_memory(cause) else None
