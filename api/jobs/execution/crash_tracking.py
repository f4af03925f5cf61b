"""Crash tracking: which jobs have work in code that can take the process down.

    with tracker.exposed(job, check):    # waits for its turn; then the job is on record as exposed
        ...

Such code is voice activity detection, the engine and the diarizer. The record is a row that is committed
before the work begins, so it outlives the process. The rows of a dead process name the jobs that may have
killed it; jobs that wait, are being decoded (in a child process), written or called back did not.

One death does not tell which of several exposed jobs caused it, and a process is also killed from outside.
So a job that was exposed is a *suspect* until it progresses, and a suspect is exposed alone. Only a death
without other exposed work counts against it. Other jobs wait meanwhile: for one group, because progress
clears a suspect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..storage.store import Store

POLL_S = 0.1


class CrashTracker:
    """The exposed jobs of this process.

    `other_requests` counts requests in the same engine that are not jobs. `make_way` is called with each
    job that must leave because a suspect needs to be alone; that job is exposed again later.
    """

    def __init__(
        self,
        store: Store,
        executor: str,
        other_requests: Callable[[], int] = lambda: 0,
        make_way: Callable[[str], None] = lambda job: None,
    ) -> None:
        self.records, self.executor = store.crashes, executor
        self.other_requests, self.make_way = other_requests, make_way
        self._changed = threading.Condition()
        self._exposed: dict[str, bool] = {}  # job: whether no other job may be exposed
        self._waiting: dict[str, int] = {}  # suspect: deaths of processes while it was exposed
        self._ending = False

    @contextmanager
    def exposed(self, job: str, check: Callable[[], None]) -> Iterator[None]:
        """Expose a job for a block."""
        self.expose(job, check)
        try:
            yield
        finally:
            self.withdraw(job)

    def expose(self, job: str, check: Callable[[], None]) -> None:
        """Wait for the job's turn and put it on record. Does nothing if the job is exposed already.

        `check` is called while waiting; it raises if the job is not to be continued.
        """
        with self._changed:
            if job in self._exposed:
                return
        deaths = self.records.deaths(job)
        self._wait_for_turn(job, deaths, check)
        try:
            if not self._ending:  # from then on, a kill is meant for the process
                alone = deaths > 0 and not self.other_requests()
                self.records.expose(self.executor, job, alone=alone)
        except BaseException:
            self._remove(job)
            raise

    def withdraw(self, job: str) -> None:
        """Remove the job, if it is exposed. A row that cannot be written now is removed by `sync`."""
        with self._changed:
            exposed = job in self._exposed
        if exposed:
            try:
                self.records.withdraw(self.executor, job)
            except Exception:  # the database is away
                pass
            finally:
                self._remove(job)

    def progressed(self, job: str) -> None:
        """The job is no longer a suspect: others may be exposed at the same time."""
        with self._changed:
            if job in self._exposed:
                self._exposed[job] = False
                self._changed.notify_all()

    def request_joined(self) -> None:
        """A request enters the engine: an exposed suspect is not alone any more."""
        with self._changed:
            suspect = any(self._exposed.values())
        if suspect:
            self.records.clear_alone(self.executor)

    def sync(self) -> None:
        """Make the rows of this process equal to its exposed jobs."""
        with self._changed:
            jobs = frozenset(self._exposed)
        self.records.keep_only(self.executor, jobs)

    def end(self) -> None:
        """The process is about to end on purpose: from here on a kill counts against no job."""
        with self._changed:
            self._ending = True
        self.records.keep_only(self.executor, frozenset())

    def _wait_for_turn(self, job: str, deaths: int, check: Callable[[], None]) -> None:
        with self._changed:
            if deaths:
                self._waiting[job] = deaths
            try:
                while not self._may_enter(job):
                    others = [
                        other for other, alone in self._exposed.items() if deaths and not alone
                    ]
                    for other in others:
                        self.make_way(other)
                    self._changed.wait(POLL_S)
                    check()
                self._exposed[job] = deaths > 0
            finally:
                self._waiting.pop(job, None)
                self._changed.notify_all()

    def _may_enter(self, job: str) -> bool:
        """Suspects come first, those with the fewest deaths before the others."""
        if job in self._waiting:
            first = min(self._waiting, key=lambda suspect: (self._waiting[suspect], suspect))
            return first == job and not self._exposed
        return not self._waiting and not any(self._exposed.values())

    def _remove(self, job: str) -> None:
        with self._changed:
            self._exposed.pop(job, None)
            self._changed.notify_all()
