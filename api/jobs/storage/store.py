"""The job store: a database and a blob folder, opened together.

    store = Store.open(folder)
    with store.transaction() as tx:          # the engine's queue is in the same database
        store.jobs.insert(tx, new)
        engine.enqueue(tx, item)

Knows which tables there are; the columns are known to the class of each table.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from forescribe.asr.errors import OutputError, StorageError

from ..blob_storage.blob_store import BlobStore
from .blobs import Blobs
from .crash_records import CrashRecords
from .database import Database, Tx
from .event_log import EventLog
from .heartbeats import Heartbeats
from .idempotency_keys import IdempotencyKeys
from .job_table import JobTable
from .references import References
from .tables import ENTRIES, EXPOSED, JOBS, KEYS
from .task_turns import Turns


class Store:
    """One object for each table, over one database and one blob store."""

    def __init__(
        self, database: Database, blobs: BlobStore, clock: Callable[[], float] = time.time
    ) -> None:
        self.database, self.blobs, self.clock = database, blobs, clock
        self.log = EventLog(database)
        self.crashes = CrashRecords(database)
        self.jobs = JobTable(database, self.log, self.crashes, self.now)
        self.references = References(database, blobs)
        self.keys = IdempotencyKeys(database, self.now)
        self.heartbeats = Heartbeats(database, blobs.place)
        self.turns = Turns(database)

    @classmethod
    def open(cls, folder: Path, url: str | None = None, blobs: BlobStore | None = None) -> Store:
        """The store in a folder, with its own SQLite database or the one at `url`, and its own blobs or
        others. Raises UsageError, CapacityError."""
        database = Database.open(url or f"sqlite:///{folder / 'jobs.db'}")
        return cls(database, blobs or Blobs(folder / "blobs"))

    def now(self) -> float:
        """Unix seconds."""
        return self.clock()

    def transaction(self) -> AbstractContextManager[Tx]:
        """A transaction. Raises OutputError if the database's disk is full or read-only."""
        return self.database.transaction()

    def writable(self) -> bool:
        """Whether a row can be committed and a blob written."""
        try:
            self.heartbeats.probe()
            self.blobs.probe()
            return True
        except (DBAPIError, OutputError, StorageError):
            return False

    def erase(self, id: str) -> None:
        """Delete all rows of a job, and the blobs that only this job refers to."""
        deletions = [
            sa.delete(table).where(table.c.job == id) for table in (ENTRIES, KEYS, EXPOSED)
        ]
        self.references.drop_all(id, *deletions, sa.delete(JOBS).where(JOBS.c.id == id))
        self.database.truncate_log()

    def close(self) -> None:
        self.blobs.close()
        self.database.close()
