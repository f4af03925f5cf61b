"""Outages that are not a job's fault: a database or object storage that is away, a disk that is full.

They are waited out, and do not count as attempts. Does not know what the steps do.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy.exc import DBAPIError

from forescribe.asr.errors import ForescribeError, OutputError

from ...settings import Settings
from ..storage.store import Store
from .active_jobs import ActiveJobs

log = logging.getLogger("forescribe.api")

STORAGE = frozenset({"storage_full", "unwritable_output"})
AWAY = frozenset({"storage_unavailable", "storage_denied"})
"""Codes of object storage that does not answer, throttles, or does not accept the credentials (any more)."""

MIN_FREE_BYTES = 4 << 20
"""With less a disk counts as full, whatever the settings say."""

AWAY_S = 1.0
"""Seconds between checks of a database or a disk that is away."""

T = TypeVar("T")


def report_fault(where: str, error: Exception) -> None:
    """Log the type and the place of an error. Its message may contain text of a transcript."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    entry = {"event": "job_fault", "in": where, "error": type(error).__name__, "place": place}
    log.error(json.dumps(entry))


class Outages:
    """Waits for the database and the disks. All methods raise Stopping when the process ends."""

    def __init__(self, settings: Settings, store: Store, active: ActiveJobs) -> None:
        self.settings, self.store, self.active = settings, store, active

    def wait_for_database(self, job: str | None, act: Callable[[], T]) -> T:
        """The result of `act`, repeated while the database goes away. `job`: the one that `act` works on,
        which holds nothing meanwhile; None if it only reads about one, whose run may be in progress."""
        while True:
            try:
                return act()
            except DBAPIError as error:
                if not self.store.database.lost(error):
                    raise
                report_fault("database", error)
            if job is not None:
                self.active.release(job)  # groups that are not stored yet are decoded again
            while not self.store.database.available():
                self.active.pause(AWAY_S)

    def wait_for_storage(self, job: str | None, act: Callable[[], T]) -> T:
        """As `wait_for_database`, also while nothing can be written."""
        while True:
            try:
                return self.wait_for_database(job, act)
            except OutputError as error:
                report_fault("storage", error)
            self.wait_for_room()

    def wait_for_room(self, check: Callable[[], None] = lambda: None) -> None:
        """Wait until there is room on the disks. Raises what `check` raises."""
        while True:
            self.active.pause(AWAY_S)
            check()
            if self._room():
                return

    def caused(self, error: ForescribeError) -> bool:
        """Whether an error comes from object storage that is away, or from a disk that is still full or
        read-only."""
        return error.code in AWAY or (error.code in STORAGE and not self._room())

    def _room(self) -> bool:
        minimum = max(self.settings.min_free_bytes, MIN_FREE_BYTES)
        return (
            self.store.blobs.free >= minimum
            and shutil.disk_usage(tempfile.gettempdir()).free >= MIN_FREE_BYTES
            and self.store.writable()
        )
