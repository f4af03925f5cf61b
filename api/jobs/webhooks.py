"""Webhooks: the end of a job is told to whoever asked, signed, until they say that they know.

    webhook-id: msg_<job>.<run>           the same for every try: receivers drop what they have
    webhook-timestamp: 1790000123
    webhook-signature: v1,<base64 of HMAC-SHA256(secret, "id.timestamp.body")>

Standard Webhooks, so receivers verify in any language. The body says what happened and where to look,
never what was heard. A try is 2xx or it has failed; 410 ends it. Promises at least once.
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
from .records import Job

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
"""How long before each try."""

TIMEOUT_S = 20.0
JITTER = 0.1
"""A wait is longer by up to this share, or all receivers of a bad hour would be called at once."""

PREFIX = "whsec_"
SHORTEST_SECRET = 16
"""Bytes."""

Answer = Literal["delivered", "gone", "failed"]


@dataclass(frozen=True)
class Webhooks:
    """How callbacks are made."""

    allowed: tuple[outbound.Network, ...] = ()
    schedule_s: Sequence[float] = SCHEDULE_S
    timeout_s: float = TIMEOUT_S
    resolve: outbound.Resolve = outbound.resolved
    clock: Callable[[], float] = time.time

    def deliver(self, job: Job) -> Answer:
        """One try, for a job with a callback."""
        assert job.hook is not None and job.hook.secret is not None
        id, now = f"msg_{job.id}.{job.run}", datetime.fromtimestamp(int(self.clock()), UTC)
        text = body(job)
        headers = {
            "content-type": "application/json",
            "webhook-id": id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Webhook(job.hook.secret).sign(id, now, text),
        }
        try:
            with (
                outbound.client(
                    timeout_s=self.timeout_s, allowed=self.allowed, resolve=self.resolve
                ) as http,
                http.stream("POST", job.hook.url, content=text, headers=headers) as reply,
            ):
                status = reply.status_code  # its body is not read
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            return "failed"
        if status == 410:
            return "gone"
        return "delivered" if 200 <= status < 300 else "failed"

    def wait_s(self, number: int) -> float | None:
        """Before try `number`, from 0; None where there is none."""
        if number >= len(self.schedule_s):
            return None
        return self.schedule_s[number] * (1 + JITTER * random.random())


def body(job: Job) -> str:
    """What receivers get: no text, no file name."""
    told = {"type": f"job.{job.state}", "job_id": job.id, "state": job.state}
    return json.dumps({**told, "url": f"/v1/jobs/{job.id}"})


def check_secret(secret: str) -> str:
    """Raises ValueError for what cannot sign."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("not whsec_ with base64 behind it") from error
    if len(key) < SHORTEST_SECRET:
        raise ValueError(f"shorter than {SHORTEST_SECRET} bytes")
    return secret
