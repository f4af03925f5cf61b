"""References from jobs to blobs. A blob is deleted with the last row that refers to it.

    references.put(tx, job, "audio", blob)
    references.drop(job, "audio")          # and the blob, if no other job refers to it

Does not know what the blobs hold.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from .blobs import Blobs
from .database import Database, Tx
from .tables import REFERENCES


class References:
    """The references of all jobs of one database; `k` numbers blobs of the same role."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database, self._blobs = database, blobs

    def get(self, job: str, role: str, k: int = 0) -> str | None:
        with self._database.engine.connect() as tx:
            return self.get_in(tx, job, role, k)

    def get_in(self, tx: Tx, job: str, role: str, k: int = 0) -> str | None:
        """As `get`, within a transaction."""
        query = sa.select(REFERENCES.c.blob).where(_is(job, role, k))
        return tx.execute(query).scalar_one_or_none()

    def get_all(self, job: str, role: str) -> list[str]:
        """The blobs of a role, ordered by `k`."""
        query = sa.select(REFERENCES.c.blob).where(
            REFERENCES.c.job == job, REFERENCES.c.role == role
        )
        with self._database.engine.connect() as tx:
            return list(tx.execute(query.order_by(REFERENCES.c.k)).scalars())

    def put(self, tx: Tx, job: str, role: str, blob: str, k: int = 0) -> str | None:
        """Refer to a blob. Returns the blob that this reference named before, if it was another."""
        old = self.get_in(tx, job, role, k)
        if old is None:
            tx.execute(sa.insert(REFERENCES).values(job=job, role=role, k=k, blob=blob))
        elif old != blob:
            tx.execute(sa.update(REFERENCES).where(_is(job, role, k)).values(blob=blob))
            return old
        return None

    def drop(self, job: str, role: str) -> None:
        """Remove the references of a role, and blobs that no row refers to any more."""
        self._remove((REFERENCES.c.job == job) & (REFERENCES.c.role == role))

    def drop_all(self, job: str, *also: sa.Delete) -> None:
        """Remove all references of a job, and execute further statements in the same transaction."""
        self._remove(REFERENCES.c.job == job, *also)

    def delete_unreferenced(self, names: Iterable[str]) -> None:
        """Delete those of the blobs that no row refers to."""
        with self._blobs.exclusive_lock():
            with self._database.engine.connect() as tx:
                unreferenced = self._unreferenced(tx, names)
            self._delete(unreferenced)

    def sweep(self) -> int:
        """Delete all blobs that no row refers to, and return their number. A process that dies between
        writing a blob and its row leaves one."""
        with self._blobs.exclusive_lock():
            names = set(self._blobs.names())
            with self._database.engine.connect() as tx:
                unreferenced = self._unreferenced(tx, names)
            self._delete(unreferenced)
        return len(unreferenced)

    def _remove(self, which: sa.ColumnElement[bool], *also: sa.Delete) -> None:
        with self._blobs.exclusive_lock():
            with self._database.transaction() as tx:
                names = self._names(tx, which)
                tx.execute(sa.delete(REFERENCES).where(which))
                for statement in also:
                    tx.execute(statement)
                unreferenced = self._unreferenced(tx, names)
            self._delete(unreferenced)

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._blobs.delete(name)

    def _names(self, tx: Tx, which: sa.ColumnElement[bool]) -> set[str]:
        return set(tx.execute(sa.select(REFERENCES.c.blob).where(which)).scalars())

    def _unreferenced(self, tx: Tx, names: Iterable[str]) -> list[str]:
        referenced = self._names(tx, sa.true())
        return [name for name in names if name not in referenced]


def _is(job: str, role: str, k: int) -> sa.ColumnElement[bool]:
    return (REFERENCES.c.job == job) & (REFERENCES.c.role == role) & (REFERENCES.c.k == k)
