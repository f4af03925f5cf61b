"""Readiness: whether this process can accept work, and why not.

    readiness = Readiness(settings, serving, text_serving, jobs)
    storage = await readiness.check()     # raises ApiError `not_ready`, for load balancers

A process is ready if its models are loaded and warm, no end is announced, the disk for uploads has room, and
the job database accepts writes. If only the disk of jobs and files is full, it is ready, because it still
transcribes. Disks and database are checked once a second at most, however many probes there are, and a
database that hangs is detected.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
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
SCRATCH_SHARE = 8
"""The part of `min_free_bytes`, one in so many, that the disk for uploads needs. Jobs and files are refused
below all of it, often on the same disk, so that the rest is left for transcriptions."""


@dataclass(frozen=True)
class Storage:
    """The state of disks and database: a `fault` that ends readiness, and why nothing new is stored (`full`)
    while transcriptions go on."""

    fault: str | None = None
    full: str | None = None


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
        self._checking: asyncio.Task[Storage] | None = None
        self._result: tuple[float, Storage] | None = None  # its time, and what was found

    async def check(self) -> Storage:
        """The state of the storage. Raises ApiError `not_ready` with the reason."""
        if self.serving.state != "ready":
            raise ApiError("not_ready", f"the server is {self.serving.state}")
        if self.text_serving.state not in ("off", "ready"):
            raise ApiError("not_ready", f"the text model is {self.text_serving.state}")
        storage = await self._storage()
        if storage.fault is not None:
            raise ApiError("not_ready", storage.fault)
        return storage

    async def _storage(self) -> Storage:
        """The last result, or that of a check which all waiting probes share."""
        if self._result is not None and self.clock() - self._result[0] < FRESH_S:
            return self._result[1]
        if self._checking is None:
            self._checking = asyncio.ensure_future(self._checked())
        checking = self._checking  # the check itself ends the attribute
        done, _ = await asyncio.wait({checking}, timeout=self.wait_s)
        if not done:
            return Storage(fault="the jobs' database does not answer")  # the check goes on
        return checking.result()

    async def _checked(self) -> Storage:
        try:
            storage = await asyncio.to_thread(self._check_storage)
        except OSError:
            storage = Storage(fault="a disk cannot be read")
        finally:
            self._checking = None
        self._result = self.clock(), storage
        return storage

    def _check_storage(self) -> Storage:
        least = self.settings.min_free_bytes
        if shutil.disk_usage(tempfile.gettempdir()).free < least // SCRATCH_SHARE:
            return Storage(fault="the disk for uploads is nearly full (min_free_bytes)")
        if self.jobs is None:
            return Storage()
        database = self.jobs.store.database
        if self.jobs.store.blobs.free < least:  # nor may SQLite, on the same disk, take a row
            if not database.available():
                return Storage(fault="the jobs' database does not answer")
            return Storage(full="the disk of data_dir is nearly full (min_free_bytes)")
        if not database.accepts_writes():
            return Storage(fault="the jobs' database cannot be written")
        return Storage()
