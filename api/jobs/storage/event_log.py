"""The log of each job: numbered entries for states, progress and segments.

Does not know HTTP; `api.jobs.job_events` sends the entries to clients.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import sqlalchemy as sa

from .database import Database, Tx
from .records import EntryKind, LogEntry
from .tables import ENTRIES


class EventLog:
    """The logs of all jobs of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, tx: Tx, job: str, kind: EntryKind, data: Mapping[str, Any]) -> None:
        last = tx.execute(sa.select(sa.func.max(ENTRIES.c.n)).where(ENTRIES.c.job == job)).scalar()
        n = 1 if last is None else last + 1
        tx.execute(sa.insert(ENTRIES).values(job=job, n=n, kind=kind, data=json.dumps(dict(data))))

    def entries(self, job: str, after: int = 0) -> list[LogEntry]:
        """The entries numbered above `after`, in order."""
        query = sa.select(ENTRIES).where(ENTRIES.c.job == job, ENTRIES.c.n > after)
        with self._database.engine.connect() as tx:
            rows = tx.execute(query.order_by(ENTRIES.c.n))
            return [LogEntry(row.n, row.kind, json.loads(row.data)) for row in rows]

    def last_segment(self, tx: Tx, job: str) -> Mapping[str, Any] | None:
        """The data of the latest entry of kind `segment`."""
        query = sa.select(ENTRIES.c.data).where(ENTRIES.c.job == job, ENTRIES.c.kind == "segment")
        data = tx.execute(query.order_by(ENTRIES.c.n.desc()).limit(1)).scalar()
        return None if data is None else cast(Mapping[str, Any], json.loads(data))
