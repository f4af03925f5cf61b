"""Retention: erase jobs, audio, keys and uploads that are older than the settings keep them.

Does not know HTTP; deletion on request (`operations`) uses the same `erase`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ..settings import Settings
from ..uploads.upload_store import UploadStore
from .engines.workflow_engine import JobEngine
from .execution.active_jobs import ActiveJobs
from .storage.records import item_prefix
from .storage.store import Store

DRAFT_S = 3600.0
"""A draft of a blob that was not written to for so long has lost its writer."""

PERIOD_S = 30.0
"""Between two turns of retention, by whichever process takes them."""

SWEEP_S = 3600.0
"""Between two listings of object storage."""

RELEASE_S = 10.0
"""How long running work may take to let go of a job."""


class Retention:
    """Erases jobs, completely: rows, files, queued work and SQLite's log."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        engine: JobEngine,
        active: ActiveJobs,
        uploads: UploadStore,
        *,
        exclusive: bool = True,
    ) -> None:
        self.settings, self.store, self.engine = settings, store, engine
        self.active, self.uploads, self.exclusive = active, uploads, exclusive

    def erase_expired(self) -> None:
        """Erase everything that is older than the settings keep it. One process of a database does it for
        all; each removes its own local files."""
        now, settings, store = self.store.now(), self.settings, self.store
        store.blobs.sweep(DRAFT_S)
        self.uploads.expire(settings.upload_retention_s)
        if not self.exclusive and not store.turns.take("retention", PERIOD_S):
            return
        store.references.delete_condemned()
        for id in store.jobs.with_audio_succeeded_before(now - settings.audio_retention_s):
            store.references.drop(id, "audio")
        for id in store.jobs.ended_before(now - settings.result_retention_s):
            self.erase(id)
        store.keys.delete_before(now - settings.idempotency_retention_s)
        if store.blobs.marked and store.turns.take("objects", SWEEP_S):
            store.references.sweep_objects()

    def erase(self, id: str) -> None:
        """Erase a job that has ended."""
        self.active.abandon(id)
        prefix = item_prefix(id)
        wait_until(
            lambda: not any(item.startswith(prefix) for item in self.engine.running()), RELEASE_S
        )
        self.store.erase(id)
        self.engine.forget(id)
        self.store.database.truncate_log()


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until the condition holds, at most `seconds`."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
