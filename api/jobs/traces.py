"""Where the traces of jobs and batches continue: in the database, so that the process which does the work
continues the trace of the one that accepted it. Rows are written only while traces are on."""

from __future__ import annotations

import sqlalchemy as sa

from ..telemetry import Tracing, place
from .database import Database, Tx
from .tables import META

MAX_KNOWN = 10_000
"""Places that are kept in memory."""

TRACES = sa.Table(
    "forescribe_traces",
    META,
    sa.Column("id", sa.String, primary_key=True),  # of a job or a batch
    sa.Column("place", sa.String, nullable=False),  # W3C's traceparent
    sa.Column("created_at", sa.Float, nullable=False),
)


class JobTraces:
    """The places of one database; `tracing` says whether there are any."""

    def __init__(self, database: Database, tracing: Tracing) -> None:
        self._database, self.tracing = database, tracing
        self._known: dict[str, str | None] = {}

    def create(self) -> None:
        """Create the table, if it is missing."""
        if self.tracing.active:
            self._database.create(TRACES)

    def keep(self, tx: Tx, id: str, now: float) -> None:
        """Keep the place of the work in progress for a job that is being created."""
        here = place()
        if self.tracing.active and here is not None:
            tx.execute(sa.insert(TRACES).values(id=id, place=here, created_at=now))

    def place(self, id: str) -> str | None:
        """Where a job's trace is continued; None if it has none."""
        if not self.tracing.active:
            return None
        if id not in self._known:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            with self._database.engine.connect() as tx:
                found = tx.execute(sa.select(TRACES.c.place).where(TRACES.c.id == id))
                self._known[id] = found.scalar_one_or_none()
        return self._known[id]

    def delete_before(self, when: float) -> None:
        if self.tracing.active:
            with self._database.transaction() as tx:
                tx.execute(sa.delete(TRACES).where(TRACES.c.created_at < when))
