"""Turns: a task that one process does for all, such as retention, at most once in a period.

    if turns.take("retention", 60.0):
        ...

Periods are measured by the database's clock, so no machine's clock matters. A process that dies in its turn
delays the task by one period. Tasks must be repeatable: one that takes longer than its period overlaps with
the next turn.
"""

from __future__ import annotations

import sqlalchemy as sa

from .database import Database, Tx
from .tables import TURNS


class Turns:
    """The turns of all processes of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take(self, task: str, period_s: float) -> bool:
        """Whether this process may do the task now: nobody began it within the last `period_s` seconds."""
        with self._database.transaction() as tx:
            now = database_time(tx)
            taken = tx.execute(
                sa.update(TURNS)
                .where(TURNS.c.task == task, TURNS.c.at <= now - period_s)
                .values(at=now)
            )
            if taken.rowcount:
                return True
            return bool(insert_new(tx, TURNS, [{"task": task, "at": now}]))


def database_time(tx: Tx) -> float:
    """The database's clock, in Unix seconds."""
    if tx.dialect.name == "postgresql":
        query = "SELECT extract(epoch FROM clock_timestamp())"
    else:
        query = "SELECT (julianday('now') - 2440587.5) * 86400.0"
    return float(tx.exec_driver_sql(query).scalar_one())


def insert_new(tx: Tx, table: sa.Table, rows: list[dict[str, object]]) -> int:
    """Insert the rows whose keys do not exist yet, and return their number. Waits for other transactions
    that are inserting the same keys."""
    if tx.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert
    else:
        from sqlalchemy.dialects.sqlite import insert  # type: ignore[assignment]
    return tx.execute(insert(table).values(rows).on_conflict_do_nothing()).rowcount
