"""The end of a job: success, failure, another run, and the delivery of its callback.

A job's end and the first attempt of its callback are committed together. Does not know how a job is done.
"""

from __future__ import annotations

from ...errors import ApiError
from ..engines.workflow_engine import JobEngine
from ..job_metrics import JobMetrics
from ..storage.database import Tx
from ..storage.records import Job, State, callback_item, run_item
from ..storage.store import Store
from ..webhooks import Webhooks
from .step_control import RunReplaced


class Completion:
    """Ends runs of jobs, and delivers callbacks."""

    def __init__(
        self, store: Store, engine: JobEngine, webhooks: Webhooks, metrics: JobMetrics
    ) -> None:
        self.store, self.engine, self.webhooks, self.metrics = store, engine, webhooks, metrics

    def finish(self, job: str, run: int) -> bool:
        """The job has succeeded."""
        with self.store.transaction() as tx:
            row = self.store.jobs.current(tx, job, run)
            if row is None:
                raise RunReplaced
            self.store.jobs.set_progress(tx, job, row.total_s)
            self.end(tx, row, "succeeded")
        return True

    def fail(self, job: str, run: int, error: ApiError) -> None:
        """The job has failed; if only its diarization failed, it keeps its transcript and has succeeded."""
        with self.store.transaction() as tx:
            row = self.store.jobs.current(tx, job, run)
            if row is not None:
                state: State = "succeeded" if row.kind == "diarize" else "failed"
                self.end(tx, row, state, (error.code, error.message))

    def restart(self, job: str, run: int) -> None:
        """Queue another run of an unfinished job whose work has ended."""
        with self.store.transaction() as tx:
            if self.store.jobs.current(tx, job, run) is not None:
                restarted = self.store.jobs.restart(tx, job)
                self.engine.enqueue(tx, run_item(job, restarted.run, restarted.kind))

    def end(self, tx: Tx, job: Job, state: State, error: tuple[str, str] | None = None) -> None:
        """End a job, and queue the first attempt of its callback in the same transaction."""
        ended = self.store.jobs.end(tx, job.id, state, error)
        self.metrics.ended(ended)
        if ended.callback is not None:
            self.engine.enqueue(tx, callback_item(job.id, job.run, 0))

    def deliver(self, job: str, run: int, number: int) -> str:
        """Make one delivery attempt; if it fails, queue the next one."""
        row = self.store.jobs.get(job)
        if row is None or row.run != run or row.callback is None or row.callback.state != "pending":
            return "over"
        answer = self.webhooks.deliver(row)
        wait_s = self.webhooks.wait_s(number + 1) if answer == "failed" else None
        self.metrics.called_back(answer)
        with self.store.transaction() as tx:
            if wait_s is None:
                self.store.jobs.set_callback(tx, job, answer, number + 1)
            else:
                self.store.jobs.set_callback(tx, job, "pending", number + 1)
                self.engine.enqueue(tx, callback_item(job, run, number + 1, wait_s))
        return answer
