"""The other processes of a database: joining them, and work whose process is gone.

    join(store, executor)         # refused where their blobs are elsewhere
    recovery.tick()               # once a second

Jobs go to any process of a database, so all must see the same blobs; each records with its heartbeat which
blob store it has. Work that lost its process is queued again, and a job that keeps crashing it fails. A false
alarm costs one group that is decoded twice.

Clocks of two machines are never compared: an executor is dead when its heartbeat has not changed for some
time by this process's own clock, and a process that was suspended observes again before it judges.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from forescribe.asr.errors import CapacityError, StorageError, UsageError
from forescribe.asr.installing import how_to_install

from ..errors import ApiError
from ..settings import Settings
from .active import ActiveJobs
from .completion import Completion, JobMetrics
from .store import Store
from .tables import run_item
from .workflows import JobEngine, Pending

if TYPE_CHECKING:
    from .object_blobs import ObjectBlobs


DEAD_AFTER_S = 10.0
"""Without a heartbeat."""

STUCK_AFTER_S = 60.0
"""For work whose executor is alive but does not know it."""

CHECK_S = 60.0
"""Between two checks of all unfinished work, by one process for all."""

ASK_S = 5.0
"""How often a process asks whether the next check is its own."""

RESTARTS = 200
"""Jobs that are restarted in one tick: heartbeats wait for them."""

MAX_RESTARTS = 5
"""Runs of a job that may end without it, before it fails."""

MAX_DEATHS = 20
"""Processes that may die while a job is exposed (`api.jobs.suspects`), before it fails. They may have had
other causes: what a job does to its process shows sooner, in a child."""

WATCH_S = 12.0
"""How long to watch a heartbeat that may be that of a dead process; longer than `DEAD_AFTER_S`."""

LOOK_S = 0.5
"""Between two looks at the heartbeats."""

PATIENCE_S = 30.0
"""Of requests to object storage: clients wait for some of them, and jobs wait on after them anyway."""


class Recovery:
    """Checks the work in progress at each `tick`, and all unfinished work once a minute. `exclusive`: no
    other process uses this database, so work of any other executor has lost its process."""

    def __init__(
        self,
        store: Store,
        engine: JobEngine,
        active: ActiveJobs,
        completion: Completion,
        metrics: JobMetrics,
        *,
        exclusive: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self.engine, self.metrics = store, engine, metrics
        self.active, self.completion = active, completion
        self.exclusive, self.clock = exclusive, clock
        self._beats: dict[str, tuple[int, float]] = {}  # executor: its counter, and since when
        self._lost: dict[str, float] = {}  # work that its live executor does not know: since when
        self._last_tick: float | None = None
        self._asked_at: float | None = None  # whether the next check is this process's

    def tick(self) -> None:
        """Send a heartbeat and check all work. With a broken engine it does nothing: without heartbeats
        other processes take over the work."""
        if self.active.serving.state in ("broken", "failed"):
            return
        running = self.engine.running()
        self.store.heartbeats.beat(self.engine.executor, running)
        self.active.crashes.sync()
        living = self._living()
        if living is not None:
            self._count_deaths(frozenset(living) | {self.engine.executor})
        resumed = False
        for work in self.engine.pending():
            if living is None or work.executor in living:
                own = work.executor == self.engine.executor
                known = running if own else (living or {}).get(work.executor)
                self._watch(work, lost=known is not None and work.id not in known)
            else:
                self.metrics.resumed.inc()
                self.engine.resume(work.id, work.executor)
                resumed = True
        first = self._asked_at is None
        check = self._takes_check()
        if check or first or resumed:  # what is resumed may be of an earlier version
            self.engine.adopt()
        self._abandon_replaced(running)
        if check:
            self._restart_broken()

    def _takes_check(self) -> bool:
        """Whether this process is to check all unfinished work now."""
        now, period_s = self.clock(), CHECK_S if self.exclusive else ASK_S
        if self._asked_at is not None and now - self._asked_at < period_s:
            return False
        self._asked_at = now
        return self.exclusive or self.store.turns.take("unfinished work", CHECK_S)

    def _living(self) -> dict[str | None, frozenset[str]] | None:
        """Live executors with their work; None if this tick cannot tell."""
        now, last = self.clock(), self._last_tick
        self._last_tick = now
        if self.exclusive:
            return {self.engine.executor: self.engine.running()}
        suspended = last is None or now - last > DEAD_AFTER_S
        executors = self.store.heartbeats.all()
        for executor, (beat, _) in executors.items():
            if suspended or self._beats.get(executor, (None, 0.0))[0] != beat:
                self._beats[executor] = beat, now
        if suspended:
            return None
        living: dict[str | None, frozenset[str]] = {
            executor: work
            for executor, (_, work) in executors.items()
            if now - self._beats[executor][1] < DEAD_AFTER_S
        }
        for executor in executors.keys() - living.keys():
            self.store.heartbeats.delete(executor)
        return living

    def _watch(self, work: Pending, *, lost: bool) -> None:
        """Resume work that its live executor has not known for some time."""
        if not lost:
            self._lost.pop(work.id, None)
            return
        since = self._lost.setdefault(work.id, self.clock())
        if self.clock() - since >= STUCK_AFTER_S:
            del self._lost[work.id]
            self.metrics.stuck.inc()
            self.engine.resume(work.id, work.executor)

    def _count_deaths(self, living: frozenset[str | None]) -> None:
        """Count the deaths of processes, and fail jobs that were exposed in too many of them."""
        for id, deaths in self.store.crashes.count_deaths(living):
            job = self.store.jobs.get(id)
            if job is None or job.ended:
                continue
            if deaths >= MAX_DEATHS:
                text = f"the server's process died {deaths} times while it worked on this job"
                self.completion.fail(id, job.run, ApiError("internal_error", text))
                self.engine.cancel(run_item(id, job.run, job.kind).id)

    def _abandon_replaced(self, running: frozenset[str]) -> None:
        """Free the slots of runs that another process has cancelled or replaced."""
        for id in running:
            job_id, run = id.split(":")[:2]
            job = self.store.jobs.get(job_id)
            if job is None or job.ended or job.run != int(run):
                self.active.abandon(job_id)

    def _restart_broken(self) -> None:
        """Restart jobs whose work has ended without them, because the engine could not record an answer
        (for example on a full disk). A job that ends so repeatedly fails."""
        runs = self.store.jobs.unfinished_runs()
        with self.store.database.engine.connect() as tx:
            broken = self.engine.broken(tx, runs)
        for id in broken[:RESTARTS]:
            job_id, run = id.split(":")
            job = self.store.jobs.get(job_id)
            if job is None or job.ended or job.run != int(run):
                continue
            if job.crashes + 1 < MAX_RESTARTS:
                self.completion.restart(job.id, job.run)
                continue
            text = "the job could not go on; retry it when the server is well"
            self.completion.fail(job.id, job.run, ApiError("internal_error", text))


def join(
    store: Store,
    executor: str,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Join the processes of the database. Raises UsageError if a living one has its blobs elsewhere."""
    beats = store.heartbeats
    beats.beat(executor, ())  # first: of two that start together at least one sees the other
    first, end_s = beats.elsewhere(), clock() + WATCH_S
    while first and clock() < end_s:
        if any(beats.elsewhere().get(other, beat) != beat for other, beat in first.items()):
            beats.delete(executor)
            raise UsageError(
                "another process of this database keeps its audio and results in another place, so each "
                "would lack what the other has: set the same blobs_url for all, or the same data_dir on "
                "a disk that they share"
            )
        sleep(LOOK_S)
        beats.beat(executor, ())


def open_store(settings: Settings, folder: Path) -> Store:
    """The job store of the settings, in the folder. Raises UsageError, CapacityError."""
    blobs = None
    if settings.blobs_url is not None:
        blobs = open_objects(settings.blobs_url, folder, settings.blob_cache_bytes)
    return Store.open(folder, settings.database_url, blobs)


def open_objects(url: str, folder: Path, cache_bytes: int) -> ObjectBlobs:
    """The blobs at a URL. Raises UsageError if it cannot be used, CapacityError if it does not answer."""
    try:
        from forescribe.asr.storage import stores
        from forescribe.asr.storage.locations import Location
    except ModuleNotFoundError as error:
        raise UsageError(
            f"blobs_url needs {error.name}: {how_to_install('serve', 's3')}"
        ) from error
    from .object_blobs import ObjectBlobs

    try:
        store = stores.open_store(Location.parse(url), patience_s=PATIENCE_S)
        blobs = ObjectBlobs(store, folder / "objects", cache_bytes)
        blobs.probe()
    except StorageError as error:
        kind = CapacityError if error.code == "storage_unavailable" else UsageError
        raise kind(f"blobs_url: {error.message}") from error
    return blobs
