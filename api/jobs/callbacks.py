"""Callbacks at the end of jobs, signed and retried until they are confirmed; and the metrics of jobs.

    webhook-id: msg_<job>.<run>           the same for every attempt: receivers drop duplicates
    webhook-timestamp: 1790000123
    webhook-signature: v1,<base64 of HMAC-SHA256(secret, "id.timestamp.body")>

A job's end makes its callback due. The format is Standard Webhooks, so receivers can verify it in any
language. The body names the job and its state, never text. An answer of 2xx confirms, 410 ends the attempts,
anything else is a failure. Delivery is at least once: a process that dies over an attempt has only a lease of
it. Labels of metrics never hold ids or names.
"""

from __future__ import annotations

import base64
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import httpx
from standardwebhooks import Webhook

from ..access import outbound
from ..access.outbound import Network
from ..telemetry import Metrics
from .tables import Job

SCHEDULE_S: Sequence[float] = (0, 5, 5 * 60, 30 * 60, *(h * 3600 for h in (2, 5, 10, 14, 20, 24)))
"""Seconds before each attempt."""

TIMEOUT_S = 20.0
JITTER = 0.1
"""Waits are longer by up to this share, so that the callbacks of an outage are not all made at once."""

SECRET_PREFIX = "whsec_"
MIN_SECRET_BYTES = 16

Answer = Literal["delivered", "gone", "failed"]


@dataclass(frozen=True)
class Webhooks:
    """Delivers callbacks."""

    allowed: tuple[Network, ...] = ()
    schedule_s: Sequence[float] = SCHEDULE_S
    timeout_s: float = TIMEOUT_S

    def deliver(self, job: Job) -> Answer:
        """Make one attempt for a job with a callback."""
        assert job.hook_url is not None and job.hook_secret is not None
        id, now = f"msg_{job.id}.{job.run}", datetime.fromtimestamp(int(time.time()), UTC)
        event = {"type": f"job.{job.state}", "job_id": job.id, "state": job.state}
        text = json.dumps({**event, "url": f"/v1/jobs/{job.id}"})  # no transcript, no file name
        headers = {
            "content-type": "application/json",
            "webhook-id": id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Webhook(job.hook_secret).sign(id, now, text),
        }
        try:
            with (
                outbound.client(timeout_s=self.timeout_s, allowed=self.allowed) as http,
                http.stream("POST", job.hook_url, content=text, headers=headers) as reply,
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


def check_secret(secret: str) -> str:
    """The secret. Raises ValueError if it cannot sign."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError as error:
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
        self.tries = counter("webhook_tries", "Delivery attempts of callbacks by result.", "answer")
        text = "From the creation of a job to the beginning of its work."
        self._queue_s = histogram("job_queue_seconds", text)
        text = "From the beginning of a job's work to its end, downtime included."
        self._job_s = histogram("job_seconds", text)

    def ended(self, job: Job) -> None:
        """Count a run that has ended."""
        self._ended.labels(job.state).inc()
        if job.started_at is not None and job.finished_at is not None and job.run == 1:
            self._queue_s.observe(max(0.0, job.started_at - job.created_at))
            self._job_s.observe(max(0.0, job.finished_at - job.started_at))
