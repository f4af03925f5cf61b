"""Readiness: whether this process can take work, and why not.

    readiness = Readiness(settings, serving, texting, jobs)
    await readiness.check()               # ApiError `not_ready`, for whoever shares out requests

Ready is: the models are loaded and warm, nobody has announced an end, both disks are above their mark,
and the jobs' database takes writes. Disks and database are looked at once a second at most, however many
probes there are, and a database that hangs is noticed as well.
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
WAIT_S = 2.0
"""For the disks and the database."""


class Readiness:
    """Of one application; on the event loop alone."""

    def __init__(
        self,
        settings: Settings,
        serving: Serving,
        texting: TextServing,
        jobs: Jobs | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.serving, self.texting, self.jobs = settings, serving, texting, jobs
        self.clock, self.wait_s = clock, WAIT_S
        self._look: asyncio.Future[str | None] | None = None
        self._known: tuple[float, str | None] | None = None  # since when, what is wrong

    async def check(self) -> None:
        """Raises ApiError `not_ready` that says what is missing."""
        if self.serving.state != "ready":
            raise ApiError("not_ready", f"the server is {self.serving.state}")
        if self.texting.state not in ("off", "ready"):
            raise ApiError("not_ready", f"the text model is {self.texting.state}")
        wrong = await self._stored()
        if wrong is not None:
            raise ApiError("not_ready", wrong)

    async def _stored(self) -> str | None:
        """What is wrong with disks and database; None where nothing is."""
        if self._known is not None and self.clock() - self._known[0] < FRESH_S:
            return self._known[1]
        if self._look is None:
            self._look = asyncio.ensure_future(asyncio.to_thread(self._seen))
        done, _ = await asyncio.wait({self._look}, timeout=self.wait_s)
        if not done:
            return "the jobs' database does not answer"  # it is still being asked
        wrong = self._look.result()
        self._look, self._known = None, (self.clock(), wrong)
        return wrong

    def _seen(self) -> str | None:
        least = self.settings.min_free_bytes
        if shutil.disk_usage(tempfile.gettempdir()).free < least:
            return "the disk for uploads is nearly full (min_free_bytes)"
        if self.jobs is None:
            return None
        if self.jobs.store.blobs.free < least:
            return "the disk of data_dir is nearly full (min_free_bytes)"
        if not _writable(self.jobs):
            return "the jobs' database cannot be written"
        return None


def _writable(jobs: Jobs) -> bool:
    """By a row that is not kept."""
    import sqlalchemy as sa

    from ..jobs.store import KEYS

    row = {"tenant": "", "key": "", "fingerprint": "", "job": "", "created_at": 0.0}
    try:
        with jobs.store.engine.connect() as tx:
            tx.execute(sa.insert(KEYS).values(**row))
            tx.rollback()
    except sa.exc.SQLAlchemyError:
        return False
    return True
