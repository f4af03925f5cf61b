"""The thread that moves batches on: a pass over all that have not ended, again and again.

    runner = BatchRunner(steps, table, executor, exclusive=True)
    runner.start()
    runner.wake()                    # a batch was created or cancelled
    runner.stop()

Nothing of a batch is kept in memory, so any process can go on with it. On a shared database one process at
a time works on a batch; when it dies, another one takes it. A batch that fails for the server's reasons
is tried again at the next pass and delays no other. Does not know what the steps do.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy.exc import DBAPIError

from forescribe.asr.errors import OutputError, StorageError

from ..errors import ApiError
from ..jobs.engines.workflow_engine import Stopping
from ..jobs.execution.outages import report_fault
from ..jobs.service import Jobs
from .batch_records import Batch, LineRow
from .batch_steps import BatchSteps
from .batch_table import BatchTable

TICK_S = 0.5
"""Seconds between passes while nothing happens."""

SUBMITTERS = 4
"""Lines that are fetched and decoded at a time; the decoders themselves are limited by `readers`."""

REST_S = 10.0
"""Longest pause of a batch after a line had to wait: each attempt fetches and decodes its recording again."""

MAX_FAULTS = 3
"""Exceptions that are nobody's mistake, until a line is given up."""


class BatchRunner:
    """Moves the batches of one database on, in one thread and a few helpers."""

    def __init__(self, jobs: Jobs, table: BatchTable) -> None:
        self.jobs, self.table = jobs, table
        self.steps: BatchSteps | None = None
        self.also: Callable[[], None] = lambda: None
        """Called at each pass."""
        self._stopping, self._woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self._pool = ThreadPoolExecutor(SUBMITTERS, thread_name_prefix="batch-line")
        self._faults: Counter[tuple[str, int]] = Counter()
        self.clock: Callable[[], float] = time.monotonic
        self._resting: dict[str, float] = {}  # until when, by batch
        self._reported = ""

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        """End after the step in progress; the next process goes on. Does nothing the second time."""
        self._stopping.set()
        self._woken.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        self._pool.shutdown()

    def leave(self) -> None:
        """Raises Stopping if the process is to end."""
        if self._stopping.is_set():
            raise Stopping

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._woken.clear()
            try:
                self.also()
                self.advance_all()
                self._reported = ""
            except Stopping:
                return
            except Exception as error:  # the database is away
                self._report(error)
            self._woken.wait(TICK_S)

    def advance_all(self) -> None:
        """One pass over all batches that have not ended."""
        for batch in self.table.unfinished():
            self.leave()
            own = self.jobs.engine.executor
            exclusive = self.jobs.recovery.exclusive
            if batch.executor != own and not self.table.claim(batch.id, own, exclusive=exclusive):
                continue
            try:
                self.advance(batch)
            except Exception as error:  # the disk is full, the database went away: tried again
                self._report(error)

    def advance(self, batch: Batch) -> None:
        """Do what the batch's state asks for."""
        assert self.steps is not None
        steps = self.steps
        if batch.state == "validating":
            steps.validate(batch)
        elif batch.state == "cancelling":
            steps.cancel(batch)
        elif batch.state == "finalizing":
            steps.finish(batch)
        elif self.jobs.store.now() >= batch.expires_at:
            steps.expire(batch)
        else:
            self._progress(batch, steps)

    def _progress(self, batch: Batch, steps: BatchSteps) -> None:
        """Settle lines, submit further ones, and finalize once all have ended."""
        steps.settle(batch)
        counts = self.table.counts([batch.id])[batch.id]
        room = self.jobs.settings.batch_open_jobs - counts.get("submitted", 0)
        room = 0 if self._rests(batch) else room
        pending = self.table.lines(batch.id, "pending", room) if room > 0 else []
        submitted = [self._pool.submit(self._submit, batch, line, steps) for line in pending]
        if any([waited.result() for waited in submitted]):
            self.wake()
        if not (counts.get("pending") or counts.get("submitted")):
            with self.jobs.store.transaction() as tx:
                self.table.enter(tx, batch.id, "finalizing", ("in_progress",))
            self._resting.pop(batch.id, None)
            self.wake()

    def _rests(self, batch: Batch) -> bool:
        return self.clock() < self._resting.get(batch.id, 0.0)

    def _submit(self, batch: Batch, line: LineRow, steps: BatchSteps) -> bool:
        """Submit a line; False if it has to wait."""
        self.leave()
        if self._rests(batch):
            return False
        try:
            place = self.jobs.traces.place(batch.id)
            with self.jobs.serving.tracing.span("batch line", parent=place, batch=batch.id):
                steps.submit(batch, line)
            return True
        except ApiError as error:  # the server or the key is at a limit
            self._resting[batch.id] = self.clock() + min(error.retry_after or 1, REST_S)
            return False
        except (DBAPIError, OutputError, StorageError):  # the database or the storage, not the line
            raise
        except Exception as error:
            report_fault("batch", error)
            self._faults[batch.id, line.k] += 1
            if self._faults[batch.id, line.k] >= MAX_FAULTS:
                steps.drop(line)
            return False

    def _report(self, error: Exception) -> None:
        if self._reported != type(error).__name__:  # log it once
            self._reported = type(error).__name__
            report_fault("batches", error)
