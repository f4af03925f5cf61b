"""Records of which job's work was exposed when a process died.

A job is *exposed* while its work runs in code that can take the process down. The rows are committed
before that work begins, so they outlive the process. `api.jobs.execution.crash_tracking` decides when.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from .database import Database, Tx
from .tables import EXPOSED, JOBS


class CrashRecords:
    """The exposed jobs of all processes of one database, with the deaths that each has seen."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def deaths(self, job: str) -> int:
        """Processes that died while this job was exposed, since it last progressed."""
        query = sa.select(EXPOSED.c.deaths).where(EXPOSED.c.job == job)
        with self._database.engine.connect() as tx:
            return tx.execute(query).scalar_one_or_none() or 0

    def expose(self, executor: str, job: str, *, alone: bool) -> None:
        """Record that a job's work is about to begin."""
        with self._database.transaction() as tx:
            updated = tx.execute(
                sa.update(EXPOSED)
                .where(EXPOSED.c.job == job)
                .values(executor=executor, alone=alone)
            )
            if not updated.rowcount:
                row = {"job": job, "executor": executor, "alone": alone, "deaths": 0}
                tx.execute(sa.insert(EXPOSED).values(**row))

    def clear_alone(self, executor: str) -> None:
        """Record that other work has joined the process: no job is alone in it any more."""
        with self._database.transaction() as tx:
            tx.execute(sa.update(EXPOSED).where(EXPOSED.c.executor == executor).values(alone=False))

    def withdraw(self, executor: str, job: str) -> None:
        """Record that a job's work has left the process."""
        with self._database.transaction() as tx:
            self._remove(tx, (EXPOSED.c.executor == executor) & (EXPOSED.c.job == job))

    def keep_only(self, executor: str, jobs: frozenset[str]) -> None:
        """Withdraw all jobs of the process but these."""
        with self._database.transaction() as tx:
            self._remove(tx, (EXPOSED.c.executor == executor) & EXPOSED.c.job.not_in(jobs))

    def count_deaths(self, living: Iterable[str | None]) -> list[tuple[str, int]]:
        """Count the deaths of all other processes. Returns the jobs that were exposed, with their deaths so
        far. A job that was alone caused the crash, which its own row counts."""
        with self._database.transaction() as tx:
            dead = EXPOSED.c.executor.is_not(None) & EXPOSED.c.executor.not_in(list(living))
            rows = tx.execute(sa.select(EXPOSED).where(dead).with_for_update()).all()
            for row in rows:
                if row.alone:
                    crashes = sa.update(JOBS).where(JOBS.c.id == row.job)
                    tx.execute(crashes.values(crashes=JOBS.c.crashes + 1))
                tx.execute(
                    sa.update(EXPOSED)
                    .where(EXPOSED.c.job == row.job)
                    .values(executor=None, alone=False, deaths=row.deaths + 1)
                )
        return [(row.job, row.deaths + 1) for row in rows]

    def clear(self, tx: Tx, job: str) -> None:
        """Forget the deaths of a job that has progressed: it did not cause them."""
        tx.execute(sa.update(JOBS).where(JOBS.c.id == job).values(crashes=0))
        tx.execute(sa.update(EXPOSED).where(EXPOSED.c.job == job).values(deaths=0, alone=False))

    def _remove(self, tx: Tx, which: sa.ColumnElement[bool]) -> None:
        tx.execute(sa.delete(EXPOSED).where(which, EXPOSED.c.deaths == 0))
        tx.execute(sa.update(EXPOSED).where(which).values(executor=None, alone=False))
