"""The end of a job: success, failure, another run, and a signed callback that is retried until confirmed.

    webhook-id: msg_<job>.<run>           the same for every attempt: receivers drop duplicates
    webhook-timestamp: 1790000123
    webhook-signature: v1,<base64 of HMAC-SHA256(secret, "id.timestamp.body")>

A job's end and the first attempt of its callback are committed together. The format is Standard Webhooks, so
receivers can verify it in any language. The body names the job and its state, never text. An answer of 2xx
confirms, 410 ends the attempts, anything else is a failure. Delivery is at least once. Series of Prometheus
count what has ended; labels never hold ids or names. Does not know how a job is done.
"""

from __future__ import annotations

import base64
import binascii
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import httpx
from standardwebhooks import Webhook

from ..access import outbound
from ..access.addresses import Network
from ..errors import ApiError
from ..metrics import Metrics
from .database import Tx
from .store import Store
from .tables import Job, State, callback_item, run_item
from .workflows import JobEngine, RunReplaced

SCHEDULE_S: Sequence[float] = (
    0,
    5,
    5 * 60,
    30 * 60,
    2 * 3600,
    5 * 3600,
    10 * 3600,
    14 * 3600,
    20 * 3600,
    24 * 3600,
)
"""Seconds before each attempt."""

TIMEOUT_S = 20.0
JITTER = 0.1
"""Waits are longer by up to this share, so that the callbacks of an outage are not all made at once."""

SECRET_PREFIX = "whsec_"
MIN_SECRET_BYTES = 16

Answer = Literal["delivered", "gone", "failed"]


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
        self.metrics.tries.labels(answer).inc()
        with self.store.transaction() as tx:
            if wait_s is None:
                self.store.jobs.set_callback(tx, job, answer, number + 1)
            else:
                self.store.jobs.set_callback(tx, job, "pending", number + 1)
                self.engine.enqueue(tx, callback_item(job, run, number + 1, wait_s))
        return answer


@dataclass(frozen=True)
class Webhooks:
    """Delivers callbacks."""

    allowed: tuple[Network, ...] = ()
    schedule_s: Sequence[float] = SCHEDULE_S
    timeout_s: float = TIMEOUT_S
    resolve: outbound.Resolve = outbound.resolve_name
    clock: Callable[[], float] = time.time

    def deliver(self, job: Job) -> Answer:
        """Make one attempt for a job with a callback."""
        callback = job.callback
        assert callback is not None and callback.secret is not None
        id, now = f"msg_{job.id}.{job.run}", datetime.fromtimestamp(int(self.clock()), UTC)
        text = body(job)
        headers = {
            "content-type": "application/json",
            "webhook-id": id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Webhook(callback.secret).sign(id, now, text),
        }
        try:
            with (
                outbound.client(
                    timeout_s=self.timeout_s, allowed=self.allowed, resolve=self.resolve
                ) as http,
                http.stream("POST", callback.url, content=text, headers=headers) as reply,
            ):
                status = reply.status_code  # its body is not read
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            return "failed"
        if status == 410:
            return "gone"
        return "delivered" if 200 <= status < 300 else "failed"

    def wait_s(self, number: int) -> float | None:
        """Seconds before attempt `number`, counted from 0; None after the last one."""
        if number >= len(self.schedule_s):
            return None
        return self.schedule_s[number] * (1 + JITTER * random.random())


def body(job: Job) -> str:
    """The body that receivers get: no text, no file name."""
    event = {"type": f"job.{job.state}", "job_id": job.id, "state": job.state}
    return json.dumps({**event, "url": f"/v1/jobs/{job.id}"})


def check_secret(secret: str) -> str:
    """The secret. Raises ValueError if it cannot sign."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("not whsec_ followed by base64") from error
    if len(key) < MIN_SECRET_BYTES:
        raise ValueError(f"shorter than {MIN_SECRET_BYTES} bytes")
    return secret


class JobMetrics:
    """The series of jobs; the help text of each defines it."""

    def __init__(self, metrics: Metrics) -> None:
        counter, histogram = metrics.counter, metrics.histogram
        self._ended = counter("jobs_ended", "Runs of jobs by final state.", "state")
        self.resumed = counter("jobs_resumed", "Work taken over from a process that has died.")
        self.stuck = counter("jobs_stuck", "Work that its process had lost, queued again.")
        self._queue_s = histogram(
            "job_queue_seconds", "From the creation of a job to the beginning of its work."
        )
        self._job_s = histogram(
            "job_seconds", "From the beginning of a job's work to its end, downtime included."
        )
        self.tries = counter("webhook_tries", "Delivery attempts of callbacks by result.", "answer")

    def ended(self, job: Job) -> None:
        """Count a run that has ended."""
        self._ended.labels(job.state).inc()
        if job.started_at is not None and job.finished_at is not None and job.run == 1:
            self._queue_s.observe(max(0.0, job.started_at - job.created_at))
            self._job_s.observe(max(0.0, job.finished_at - job.started_at))
