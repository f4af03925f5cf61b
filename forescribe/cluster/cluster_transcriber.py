"""ClusterTranscriber: a `BatchTranscriber` whose recordings are transcribed by workers of a fleet.

    transcriber = ClusterTranscriber(fleet, order, [Source("a.mp3"), Source("b.mp3")])
    for outcome in transcriber.transcribe(["a.mp3", "b.mp3"], options, hook): ...

It replaces the local transcriber in `asr.batch.batch.Batch`. So a run on a cluster names, resumes, reports
and ends as a local run does, and a driver that is killed continues from the records. Results in object
storage are written by the workers (`results`), and only counted here. Calls no function of Ray.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from forescribe.asr.decode.options import Outcome
from forescribe.asr.errors import CapacityError, UsageError
from forescribe.asr.records.sources import Source
from forescribe.speculative.stats import Stats

from .dispatch import Dispatch, crash_error
from .order import WorkOrder, order_of
from .ray_fleet import Event, Lost, RayFleet, Refused, Reported, Started
from .results import RunResults
from .worker import Report

if TYPE_CHECKING:
    from forescribe.asr.batch.batch import Batch, MakeTranscriber
    from forescribe.asr.decode.options import Hook, Options

    from ..cli.console import Console
    from ..cli.transcribe_options import TranscribeOptions


Decoder = tuple["MakeTranscriber", "Options", Callable[[], "Stats | None"]]

POLL_S = 0.5

FAILED_STARTS = 3
"""Workers that may die while they start on a machine before it is excluded; and machines that may fail
before the run ends because most of them do."""

FILL_S = 5.0
"""Seconds between attempts to start workers that there was no machine for."""

BYTES_A_SECOND = 16_000
"""Of a recording of unknown format: 128 kbit/s."""

NOTICE_S, GIVE_UP_S = 60.0, 1800.0
"""Seconds without any worker until that is said, and until the run ends."""


def cluster_decoder(options: TranscribeOptions, batch: Batch, console: Console) -> Decoder:
    """What `Batch.run` needs, on a cluster. Raises UsageError for an address or recordings that cannot be
    used; Ray is started or connected with the first recording."""
    from .ray_connection import check_address, require_ray

    assert options.cluster is not None
    check_address(options.cluster)
    require_ray()
    recordings = [source for source in batch.todo if source.error is None]
    order = order_of(options, recordings)
    results = RunResults.of(batch.outputs, batch.settings, whole=options.report is not None)
    made: list[ClusterTranscriber] = []

    def make(size: int) -> ClusterTranscriber:
        fleet = RayFleet(
            str(options.cluster),
            device=options.device,
            workers=options.workers,
            threads=options.threads,
            status=console.status,
        )
        made[:] = [
            ClusterTranscriber(
                fleet,
                order,
                recordings,
                results=results,
                notice=console.notice,
                status=console.status,
            )
        ]
        return made[0]

    return make, order.options, lambda: made[0].stats() if made else None


class ClusterTranscriber:
    """Transcribes on the workers of a fleet, each with the models and the batch of `order`.

    `recordings` are those that it may be asked for, by path. `results`: workers write results. `notice`
    is told what the user should know, `status` what a user who waits wants to know.
    """

    def __init__(
        self,
        fleet: RayFleet,
        order: WorkOrder,
        recordings: Iterable[Source],
        *,
        results: RunResults | None = None,
        notice: Callable[[str], None] = lambda text: None,
        status: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fleet, self.order, self.results = fleet, order, results
        self.recordings = {source.path: source for source in recordings}
        self.notice, self.status, self.clock = notice, status, clock
        self.stats_by_worker: dict[int, Stats] = {}

    def stats(self) -> Stats | None:
        """The sum over all workers; None before the first report."""
        totals = list(self.stats_by_worker.values())
        return sum(totals[1:], start=totals[0]) if totals else None

    def transcribe(
        self, sources: Iterable[str], options: Options | None = None, hook: Hook | None = None
    ) -> Iterator[Outcome]:
        """Yield outcomes as recordings end.

        A recording that has cost three workers fails with `crashed_workers`. A machine that cannot start a
        worker gets no more of them. Where that is so for most machines, or for all that there are, the
        last one's reason is raised: what its worker refused the run for, or CapacityError where it died.
        """
        writing = self.results.writing if self.results is not None else None
        order = replace(self.order, progress=hook is not None, writing=writing)
        if options is not None:
            order = replace(order, options=options)
        run = _Run(self, order, list(sources), hook)
        try:
            yield from run.outcomes()
        finally:
            self.fleet.close()


class _Machines:
    """Which machines run workers, and which of them failed.

    A worker whose machine is not known counts as one on a machine of its own.
    """

    def __init__(self) -> None:
        self.of: dict[int, str] = {}  # the machine of each worker that has started
        self.failed: dict[str, Exception] = {}  # those that get no more workers, with the reason
        self.deaths: Counter[str] = Counter()  # while a worker started, one after the other

    def started(self, worker: int, machine: str) -> None:
        self.of[worker] = machine or _unknown(worker)
        del self.deaths[self.of[worker]]

    def died(self, worker: int, machine: str, error: Exception) -> bool:
        """A worker has died while it started. Returns whether its machine failed with that."""
        self.deaths[machine] += 1
        if machine and self.deaths[machine] < FAILED_STARTS:
            return False
        return self.refused(worker, machine, error)

    def refused(self, worker: int, machine: str, error: Exception) -> bool:
        """A worker cannot be used. Returns whether its machine failed with that, and not before."""
        name = machine or _unknown(worker)
        first = name not in self.failed
        self.failed[name] = error
        return first

    def end(self, ready: Collection[int], pending: int) -> Exception | None:
        """The reason to end the run, if there is one: `ready` workers can work, `pending` ones have not
        started yet, each perhaps on a machine of its own."""
        working = {self.of[worker] for worker in ready}
        failed = self.failed.keys() - working
        others = len(working) + pending
        most = len(failed) >= FAILED_STARTS and len(failed) > others
        return list(self.failed.values())[-1] if failed and (most or not others) else None


class _Run:
    """One call: the state of its workers."""

    def __init__(
        self,
        owner: ClusterTranscriber,
        order: WorkOrder,
        paths: Sequence[str],
        hook: Hook | None,
    ) -> None:
        self.owner, self.fleet, self.hook, self.order = owner, owner.fleet, hook, order
        self.dispatch = Dispatch(
            {path: _length_s(owner.recordings[path]) for path in paths},
            workers=1,
            batch=order.batch,
            sequential=order.options.long_form == "sequential",
            crashes=owner.results.crashes(paths) if owner.results is not None else None,
        )
        self.running: set[int] = set()  # workers that have been started and not been lost
        self.ready: set[int] = set()  # those of them that have loaded their models
        self.leaving: set[int] = set()
        self.machines = _Machines()
        self.filled_s = owner.clock()
        self.waiting_since_s: float | None = None
        self.said = False

    def outcomes(self) -> Iterator[Outcome]:
        if not self.dispatch.open:
            return
        there = self.fleet.begin(self.order)
        self.dispatch.workers = max(1, min(there, self.dispatch.total))
        self._fill()
        while self.dispatch.open:
            for event in self.fleet.wait(POLL_S):
                yield from self._handle(event)
            self._check_start()

    def _handle(self, event: Event) -> Iterator[Outcome]:
        if event.worker not in self.running:
            return
        if isinstance(event, Refused):
            yield from self._refused(event.worker, event.machine, event.error)
        elif isinstance(event, Started):
            self.ready.add(event.worker)
            self.machines.started(event.worker, event.machine)
            self.owner.status(f"{len(self.ready)} of {self.dispatch.workers} workers are ready")
            self._feed(event.worker)
        elif isinstance(event, Reported):
            yield from self._read(event.worker, event.report)
        else:
            yield from self._lost(event)

    def _read(self, worker: int, report: Report) -> Iterator[Outcome]:
        """Pass on what a report tells, and answer it with more work."""
        self.owner.stats_by_worker[worker] = report.stats
        for text in report.notices:
            self.owner.notice(text)
        if self.hook is not None:
            stats = self.owner.stats() or Stats()
            for progress in report.progress:
                self.hook(replace(progress, stats=stats))
        for finished in report.finished:
            if self.dispatch.finished(worker, finished.name):
                yield replace(finished, worker=str(worker))
        for path in report.returned:
            self.dispatch.returned(worker, path)
        if isinstance(report.error, UsageError):
            raise report.error  # the same on every machine
        if report.error is not None:
            yield from self._refused(worker, self.machines.of[worker], report.error)
        elif report.broken is not None:
            self.fleet.stop(worker)
            yield from self._lost(Lost(worker, report.broken))
        elif report.leaving:
            yield from self._leave(worker)
        else:
            self._feed(worker)

    def _feed(self, worker: int) -> None:
        given = [self.owner.recordings[path] for path in self.dispatch.assign(worker)]
        results = self.owner.results
        self.fleet.exchange(
            worker, given if results is None else list(map(results.assigned, given))
        )

    def _leave(self, worker: int) -> Iterator[Outcome]:
        """A worker's machine is taken away: it gets no more, and is replaced once it is empty."""
        if worker not in self.leaving:
            self.leaving.add(worker)
            self.owner.notice(
                "the machine of a worker is being taken away: its work goes to others"
            )
        if self.dispatch.held(worker):
            self.fleet.exchange(worker, ())
            return
        self.fleet.stop(worker)
        yield from self._lost(Lost(worker, "its machine was taken away", taken=True))

    def _refused(self, worker: int, machine: str, error: Exception) -> Iterator[Outcome]:
        """A worker cannot be used, nor could another one on its machine."""
        self.fleet.stop(worker)
        if self.machines.refused(worker, machine, error):
            self._exclude(machine, str(error))
        yield from self._gone(worker, crashed=worker in self.ready)

    def _lost(self, event: Lost) -> Iterator[Outcome]:
        worker = event.worker
        taken = event.taken or worker in self.leaving
        if not taken:
            self.owner.notice(f"a worker has died: {event.reason}")
        if worker not in self.ready and not taken:
            error = CapacityError(
                f"no worker starts: workers died while they loaded the model: {event.reason}"
            )
            if self.machines.died(worker, event.machine, error):
                self._exclude(event.machine, event.reason)
        yield from self._gone(worker, crashed=not taken)

    def _exclude(self, machine: str, reason: str) -> None:
        if machine:
            self.fleet.exclude(machine)
            self.owner.notice(f"no more workers on {machine}: {reason}")

    def _gone(self, worker: int, *, crashed: bool) -> Iterator[Outcome]:
        """Pass on what a worker had, and start another one. Raises the reason to end the run."""
        for group in (self.running, self.ready, self.leaving):
            group.discard(worker)
        if crashed and self.owner.results is not None:
            for path in self.dispatch.held(worker):
                self.owner.results.count_crash(path)
        for path in self.dispatch.lost(worker, crashed=crashed):
            yield Outcome(path, error=crash_error(path))
        self._fill()
        if self.dispatch.open:
            pending = len(self.running) - len(self.ready)
            if (error := self.machines.end(self.ready, pending)) is not None:
                raise error

    def _fill(self) -> None:
        """Start workers up to the number that was asked for, but none without work."""
        self.filled_s = self.owner.clock()
        while len(self.running) < self.dispatch.workers and self.dispatch.waiting:
            worker = self.fleet.start()
            if worker is None:
                return
            self.running.add(worker)

    def _check_start(self) -> None:
        """Start workers where there is room now, say that none starts, and give up in the end."""
        now = self.owner.clock()
        if now - self.filled_s >= FILL_S:
            self._fill()  # on machines that have joined the cluster
        if self.ready:
            self.waiting_since_s, self.said = None, False
            return
        if self.waiting_since_s is None:
            self.waiting_since_s = now
        waited_s = now - self.waiting_since_s
        if waited_s >= GIVE_UP_S:
            raise CapacityError(
                f"no worker has started in {waited_s / 60:.0f} minutes: {self.fleet.shortage()}"
            )
        if waited_s >= NOTICE_S and not self.said:
            self.said = True
            self.owner.notice(f"no worker has started yet: {self.fleet.shortage()}")


def _unknown(worker: int) -> str:
    return f"the machine of worker {worker}"


def _length_s(source: Source) -> float | None:
    """The length of a recording, by its bytes where only they are known."""
    if source.length_s is None and source.entry is not None:
        return source.entry.size / BYTES_A_SECOND
    return source.length_s
