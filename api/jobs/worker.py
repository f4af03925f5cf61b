"""The threads that take jobs and callbacks from the queue, and keep their leases.

Each job has a thread that renews its lease while another one works on it, so a job whose work has broken off
is free soon, whatever its process does beside it. A job that two processes died over is done by one that has
been well for a while and has nothing else in hand (docs/development/job-durability.md). A process that was
away itself (suspended, without its database) first waits for others to renew. Leases are renewed only while
the engine is well: of a broken one, others take the work.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from uuid import uuid4

from ..speech.serving import Serving
from .callbacks import JobMetrics, Webhooks
from .store import BESIDE, LEASE_S, Store
from .tables import Claim, Job
from .walk import RELEASE_S, Run, RunReplaced, Stopping, Walk, report_job_fault

POLL_S = 0.2
"""Between two looks at the queue: other processes write to it too, so there is no notification."""

RENEW_S = 2.0
"""Between two renewals of a lease."""

ASK_S, ASK_EVERY_S = 60.0, 600.0
"""How long requests are kept out at most for a job that is to be done alone, and how often that is tried."""

CALLBACKS = 16
"""Concurrent callbacks: a receiver that hangs occupies one of them for 20 s."""


class Worker:
    """The jobs in progress in this process. `concurrency` is their number at a time, 0 for a process that
    only delivers callbacks."""

    def __init__(
        self,
        store: Store,
        serving: Serving,
        walk: Walk,
        webhooks: Webhooks,
        metrics: JobMetrics,
        stopping: threading.Event,
        *,
        concurrency: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self.serving, self.walk = store, serving, walk
        self.webhooks, self.metrics, self.stopping = webhooks, metrics, stopping
        self.concurrency, self.clock = concurrency, clock
        self.name = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._runs: dict[str, Run] = {}  # the jobs in progress, by id; each access is atomic
        self._calling = set[str]()  # jobs whose callbacks are being made
        self._callers = ThreadPoolExecutor(CALLBACKS, thread_name_prefix="callback")
        self._woken = threading.Event()
        self._ticked_s = self._well_since_s = -LEASE_S
        self._asked_s = -math.inf
        queue = "queue", self.tick, self._pause, self.stopping
        self._thread = threading.Thread(target=repeat, args=queue, name="jobs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Look at the queue now."""
        self._woken.set()

    def abandon(self, id: str) -> None:
        """End the work on a job, if it is in progress here."""
        run = self._runs.get(id)
        if run is not None:
            run.abandon()

    def running(self) -> frozenset[str]:
        """The ids of the jobs in progress in this process."""
        return frozenset(self._runs.copy())

    def stop(self) -> None:
        """Interrupt the work in progress, and leave it to the next process."""
        self.stopping.set()
        self.wake()
        for run in self._runs.copy().values():
            run.abandon(Stopping)
        wait_until(lambda: not self.running(), RELEASE_S)
        if self._thread.is_alive():
            self._thread.join(RELEASE_S)
        self._callers.shutdown(wait=False, cancel_futures=True)

    # -- the thread that claims -------------------------------------------------------------------

    def _pause(self) -> None:
        self._woken.wait(POLL_S)
        self._woken.clear()

    def tick(self) -> None:
        """Deliver callbacks that are due, and claim jobs."""
        self._call_back()
        if not self.concurrency or self.serving.life.state in ("broken", "failed"):
            return
        now = self.clock()
        if now - self._ticked_s > LEASE_S / 2:
            self._well_since_s = now
        while self._claim_next(now):
            pass
        self._ticked_s = now

    def _claim_next(self, now: float) -> bool:
        """Begin with the next job, if there is one and room for it."""
        runs = self._runs.copy()
        if any(run.alone for run in runs.values()):
            return False
        admission = self.serving.admission
        if runs:
            admission.closed = False
        if len(runs) >= self.concurrency or self.serving.life.state != "ready":
            return False
        claimed = self.store.jobs.claim(
            self.name,
            beside=runs.keys(),
            calm_s=now - self._well_since_s,
            alone=not runs and self.serving.vacant,
        )
        if claimed == "lonely":
            if not runs:
                self._make_room(now)
            return False
        if claimed is None:
            admission.closed = False
            return False
        job, taken_over = claimed
        if taken_over:
            self.metrics.resumed.inc()
        if job.ended:
            self.metrics.ended(job)
            return True
        run = Run(job, Claim(job.id, job.run, self.name), self.serving, self.stopping)
        run.alone = job.deaths_beside >= BESIDE
        if run.alone:
            self._asked_s = -math.inf  # the next one has all of `ASK_S` again
        else:
            admission.closed = False
        self._runs[job.id] = run
        threading.Thread(target=self._do, args=(run,), name="job", daemon=True).start()
        return True

    def _make_room(self, now: float) -> None:
        """Keep others out until those inside have left, which is looked for at each tick. A live session may
        last for hours, so this ends after a while, and is tried again."""
        if now - self._asked_s >= ASK_EVERY_S:
            self._asked_s = now
        self.serving.admission.closed = now - self._asked_s < ASK_S

    # -- the thread of a job ----------------------------------------------------------------------

    def _do(self, run: Run) -> None:
        """Keep the lease of a job while another thread works on it."""
        work = threading.Thread(target=self._work, args=(run,), name="job's work", daemon=True)
        try:
            work.start()
            while work.is_alive():
                work.join(RENEW_S)
                if work.is_alive() and not self._renewed(run):
                    run.abandon()
        finally:
            del self._runs[run.id]
            self.wake()

    def _renewed(self, run: Run) -> bool:
        """False if the job was cancelled or taken over."""
        if self.serving.life.state in ("broken", "failed"):
            return True
        try:
            return self.store.jobs.renew(run.claim)
        except Exception:  # the database may come back
            return True

    def _work(self, run: Run) -> None:
        try:
            self.walk(run)
        except RunReplaced:
            pass  # the row says why
        except Stopping:
            with suppress(Exception):  # the database may be away; the lease ends by itself
                self.store.jobs.release(run.claim)
        except Exception as error:  # likewise
            report_job_fault("job", error)

    # -- callbacks --------------------------------------------------------------------------------

    def _call_back(self) -> None:
        while len(self._calling) < CALLBACKS:
            job = self.store.jobs.claim_callback(self.webhooks.timeout_s + LEASE_S)
            if job is None:
                return
            self._calling.add(job.id)
            self._callers.submit(self._deliver, job)

    def _deliver(self, job: Job) -> None:
        """Make one delivery attempt; if it fails, the next one is due later. If its result cannot be
        recorded, the attempt is made again."""
        try:
            answer = self.webhooks.deliver(job)
            wait_s = self.webhooks.wait_s(job.hook_tries + 1) if answer == "failed" else None
            self.metrics.tries.labels(answer).inc()
            state = answer if wait_s is None else "pending"
            self.store.jobs.set_callback(job, state, wait_s or 0.0)
        except Exception as error:
            report_job_fault("callback", error)
        finally:
            self._calling.discard(job.id)


def repeat(
    where: str, act: Callable[[], object], pause: Callable[[], object], stopping: threading.Event
) -> None:
    """Act and pause until the process ends. What fails may come back, so its fault is logged once."""
    fault: type[Exception] | None = None
    while not stopping.is_set():
        try:
            act()
            fault = None
        except Exception as error:
            if fault is not type(error):
                fault = type(error)
                report_job_fault(where, error)
        pause()


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until the condition holds, at most `seconds`."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
