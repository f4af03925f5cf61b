"""Heartbeats of the processes that share a job database, with the work that each is doing.

Does not compare times: a beat is a counter, and its readers measure by their own clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from uuid import uuid4

import sqlalchemy as sa

from .database import Database
from .tables import WORKERS


class Heartbeats:
    """One row for each live process (executor). `place` tells where this process has its blobs."""

    def __init__(self, database: Database, place: str | None = None) -> None:
        self._database, self.place = database, place

    def beat(self, executor: str, work: Iterable[str]) -> None:
        """Increment the counter and record the ids of the work in progress."""
        text = json.dumps(sorted(work))
        with self._database.transaction() as tx:
            updated = tx.execute(
                sa.update(WORKERS)
                .where(WORKERS.c.executor == executor)
                .values(beat=WORKERS.c.beat + 1, work=text, place=self.place)
            )
            if not updated.rowcount:
                row = {"executor": executor, "beat": 1, "work": text, "place": self.place}
                tx.execute(sa.insert(WORKERS).values(**row))

    def all(self) -> dict[str, tuple[int, frozenset[str]]]:
        """Each executor's counter and work ids."""
        with self._database.engine.connect() as tx:
            rows = tx.execute(sa.select(WORKERS))
            return {row.executor: (row.beat, frozenset(json.loads(row.work))) for row in rows}

    def elsewhere(self) -> dict[str, int]:
        """The counters of executors whose blobs are at another place than this process's."""
        query = sa.select(WORKERS.c.executor, WORKERS.c.beat).where(WORKERS.c.place != self.place)
        with self._database.engine.connect() as tx:
            return {row.executor: row.beat for row in tx.execute(query)}

    def delete(self, executor: str) -> None:
        with self._database.transaction() as tx:
            tx.execute(sa.delete(WORKERS).where(WORKERS.c.executor == executor))

    def probe(self) -> None:
        """Commit a row and its deletion. Raises OutputError or DBAPIError if nothing can be written."""
        executor = f"probe-{uuid4().hex}"
        with self._database.transaction() as tx:
            tx.execute(sa.insert(WORKERS).values(executor=executor, beat=0, work="[]"))
            tx.execute(sa.delete(WORKERS).where(WORKERS.c.executor == executor))
