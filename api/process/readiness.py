"""Readiness: whether this process can accept work, and why not.

    readiness = Readiness(settings, serving, text_serving, jobs)
    await readiness.check()               # raises ApiError `not_ready`, for load balancers

A process is ready if its models are loaded and warm, no end is announced, both disks have room, and the job
database accepts writes. Disks and database are checked once a second at most, however many probes there
are, and a database that hangs is detected.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import ApiError
from ..settings import Settings
from ..speech.serving import Serving
from ..text.text_serving import TextServing

if TYPE_CHECKING:
    from ..jobs.service import Jobs

FRESH_S = 1.0
"""How long the result of a check is used."""
WAIT_S = 2.0
"""How long a probe waits for the disks and the database."""


class Readiness:
    """The checks of one application. Used on the event loop only."""

    def __init__(
        self,
        settings: Settings,
        serving: Serving,
        text_serving: TextServing,
        jobs: Jobs | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.serving, self.text_serving, self.jobs = (
            settings,
            serving,
            text_serving,
            jobs,
        )
        self.clock, self.wait_s = clock, WAIT_S
        self._checking: asyncio.Future[str | None] | None = None
        self._result: tuple[float, str | None] | None = None  # its time, what is wrong

    async def check(self) -> None:
        """Raises ApiError `not_ready` with the reason."""
        if self.serving.state != "ready":
            raise ApiError("not_ready", f"the server is {self.serving.state}")
        if self.text_serving.state not in ("off", "ready"):
            raise ApiError("not_ready", f"the text model is {self.text_serving.state}")
        wrong = await self._storage_fault()
        if wrong is not None:
            raise ApiError("not_ready", wrong)

    async def _storage_fault(self) -> str | None:
        """What is wrong with the disks or the database, or None."""
        if self._result is not None and self.clock() - self._result[0] < FRESH_S:
            return self._result[1]
        if self._checking is None:
            self._checking = asyncio.ensure_future(asyncio.to_thread(self._check_storage))
        done, _ = await asyncio.wait({self._checking}, timeout=self.wait_s)
        if not done:
            return "the jobs' database does not answer"  # the check goes on
        wrong = self._checking.result()
        self._checking, self._result = None, (self.clock(), wrong)
        return wrong

    def _check_storage(self) -> str | None:
        least = self.settings.min_free_bytes
        if shutil.disk_usage(tempfile.gettempdir()).free < least:
            return "the disk for uploads is nearly full (min_free_bytes)"
        if self.jobs is None:
            return None
        if self.jobs.store.blobs.free < least:
            return "the disk of data_dir is nearly full (min_free_bytes)"
        if not self.jobs.store.database.accepts_writes():
            return "the jobs' database cannot be written"
        return None
