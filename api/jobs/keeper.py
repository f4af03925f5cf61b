"""The keeper: looks again and again whether all is where it should be, and what has become too old.

Work whose process is gone is queued again; so is work that its process has lost; a job whose work has
ended without it has failed. Compares no clocks of two machines: an executor is dead when its beat has
not changed over this keeper's own time, and a keeper that was itself suspended looks again before it judges.
A false alarm costs one group that is done twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ..errors import ApiError
from .engines.workflow_engine import JobEngine, Pending
from .job_metrics import JobMetrics
from .records import run_of
from .steps import Steps
from .store import Store

log = logging.getLogger("forescribe.api")

PATIENCE_S = 10.0
"""Without a beat."""

STUCK_S = 60.0
"""Begun by a process that lives and knows nothing of it."""

MOST_CRASHES = 5
"""Processes that may die with a job alone inside (`api.jobs.in_progress`) before it fails."""

MOST_DEATHS = 20
"""The same with requests beside it, of which each may be to blame."""


class Keeper:
    """`alone` says that no other process can have this database: then what is not ours is nobody's."""

    def __init__(
        self,
        store: Store,
        engine: JobEngine,
        steps: Steps,
        metrics: JobMetrics,
        *,
        alone: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self.engine, self.steps, self.metrics = store, engine, steps, metrics
        self.alone, self.clock = alone, clock
        self._beats: dict[str, tuple[int, float]] = {}  # executor: its beat, since when
        self._lost: dict[str, float] = {}  # work that its living process does not know: since when
        self._looked: float | None = None

    def tick(self) -> None:
        """One look. With an engine that is broken there is none, and no beat: the process is as good as
        dead, and others may have its work."""
        if self.steps.serving.state in ("broken", "failed"):
            return
        mine = self.engine.running()
        self.store.beat(self.engine.executor, mine)
        self.steps.inside.settle()
        alive = self._alive()
        if alive is not None:
            self._charge(frozenset(alive) | {self.engine.executor})
        for work in self.engine.pending():
            if alive is None or work.owner in alive:
                knows = (
                    mine if work.owner == self.engine.executor else (alive or {}).get(work.owner)
                )
                self._watch(work, knows is not None and work.id not in knows)
            else:
                self.metrics.resumed()
                self.engine.resume(work.id)
        self.engine.adopt()
        self._leave(mine)
        self._go_on()

    def _alive(self) -> dict[str | None, frozenset[str]] | None:
        """Executors that beat, with their work; None where this look cannot tell."""
        now, before = self.clock(), self._looked
        self._looked = now
        if self.alone:
            return {self.engine.executor: self.engine.running()}
        suspended = before is None or now - before > PATIENCE_S
        workers = self.store.workers()
        for executor, (beat, _) in workers.items():
            if suspended or self._beats.get(executor, (None, 0.0))[0] != beat:
                self._beats[executor] = beat, now
        if suspended:
            return None
        living: dict[str | None, frozenset[str]] = {
            executor: work
            for executor, (_, work) in workers.items()
            if now - self._beats[executor][1] < PATIENCE_S
        }
        for executor in workers.keys() - living.keys():
            self.store.bury(executor)
        return living

    def _watch(self, work: Pending, lost: bool) -> None:
        if not lost:
            self._lost.pop(work.id, None)
            return
        since = self._lost.setdefault(work.id, self.clock())
        if self.clock() - since >= STUCK_S:
            del self._lost[work.id]
            self.metrics.stuck()
            self.engine.resume(work.id)

    def _charge(self, living: frozenset[str | None]) -> None:
        """Whose work was in a process when it died, and whom that has happened to too often."""
        for id, deaths in self.store.charge(living):
            job = self.store.job(id)
            if job is None or job.ended:
                continue
            if job.crashes >= MOST_CRASHES or deaths >= MOST_DEATHS:
                text = f"the server's process died {deaths} times while it worked on this job"
                self.steps.fail(id, job.run, ApiError("internal_error", text))
                self.engine.cancel(run_of(id, job.run, job.kind).id)

    def _leave(self, mine: frozenset[str]) -> None:
        """Jobs that somebody else has cancelled or begun anew free their rows."""
        for id in mine:
            job_id, run = id.split(":")[:2]
            job = self.store.job(job_id)
            if job is None or job.ended or job.run != int(run):
                self.steps.leave(job_id)

    def _go_on(self) -> None:
        """The work has ended, the job has not: the engine could not write an answer down, as on a full
        disk. A new run goes on behind what the rows hold; one that ends so again and again has failed."""
        runs = {run_of(job.id, job.run, job.kind).id: job for job in self.store.open_jobs()}
        for id in self.engine.broken(list(runs)):
            job = runs[id]
            if job.crashes + 1 < MOST_CRASHES:
                self.steps.restart(job.id, job.run)
                continue
            text = "the job could not go on; retry it when the server is well"
            self.steps.fail(job.id, job.run, ApiError("internal_error", text))
