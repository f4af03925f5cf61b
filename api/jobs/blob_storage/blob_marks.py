"""Marks of blobs in object storage: whether a blob is kept or to be deleted, decided once for all machines.

    marks.keep(tx, name)                 # with the row that refers to the blob; raises if it is condemned
    marks.condemn(tx, names)             # those without a reference; from then on `keep` refuses them

A file lock on one machine cannot protect a blob whose row is not committed yet. Here both sides write the
same row, so the database lets only one of them win: either the reference is committed, then the blob is not
condemned; or the blob is condemned, then the reference is refused and its writer stores the blob again. This
holds whatever clocks, pauses and deaths of processes do, because a name is never used for a second object
(`api.jobs.blob_storage.object_blobs`). A condemned blob is listed until its object is deleted, by
whichever process does it, and its mark stays for `REMEMBERED_S` to refuse writers that were suspended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import sqlalchemy as sa

from forescribe.asr.errors import OutputError

from ..storage.database import Database, Tx
from ..storage.tables import BLOBS, REFERENCES
from ..storage.task_turns import database_time, insert_new

REMEMBERED_S = 30 * 24 * 3600.0

BATCH = 500
"""Names in one statement."""


class BlobMarks:
    """The marks in one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, tx: Tx, name: str) -> None:
        """Keep a blob that the transaction refers to. Raises OutputError if it is condemned; the caller
        stores it again."""
        insert_new(tx, BLOBS, [{"blob": name, "state": "kept", "at": database_time(tx)}])
        query = sa.select(BLOBS.c.state).where(BLOBS.c.blob == name).with_for_update()
        if tx.execute(query).scalar_one() != "kept":
            raise OutputError("a stored object was removed before its row was written; try again")

    def lock(self, tx: Tx, names: Iterable[str]) -> None:
        """Lock the marks, so that nobody else keeps or condemns the blobs until the transaction ends."""
        for batch in _batches(names):
            query = sa.select(BLOBS.c.blob).where(BLOBS.c.blob.in_(batch))
            tx.execute(query.order_by(BLOBS.c.blob).with_for_update()).all()

    def condemn(self, tx: Tx, names: Iterable[str]) -> list[str]:
        """Condemn those of the blobs that no row refers to, and return them."""
        condemned: list[str] = []
        now = database_time(tx)
        for batch in _batches(names):
            insert_new(tx, BLOBS, [{"blob": name, "state": "kept", "at": now} for name in batch])
            self.lock(tx, batch)  # the next statement sees what their last holders have committed
            unreferenced = (
                BLOBS.c.blob.in_(batch)
                & (BLOBS.c.state == "kept")
                & ~sa.exists().where(REFERENCES.c.blob == BLOBS.c.blob)
            )
            update = sa.update(BLOBS).where(unreferenced).values(state="condemned", at=now)
            condemned += tx.execute(update.returning(BLOBS.c.blob)).scalars()
        return condemned

    def condemned(self) -> list[str]:
        """The condemned blobs whose objects may still exist."""
        with self._database.engine.connect() as tx:
            query = sa.select(BLOBS.c.blob).where(BLOBS.c.state == "condemned")
            return list(tx.execute(query).scalars())

    def abandoned(self) -> list[str]:
        """Kept blobs without a reference: one that replaced it was committed by a process that died then."""
        unreferenced = ~sa.exists().where(REFERENCES.c.blob == BLOBS.c.blob)
        with self._database.engine.connect() as tx:
            query = sa.select(BLOBS.c.blob).where(BLOBS.c.state == "kept", unreferenced)
            return list(tx.execute(query).scalars())

    def states(self, names: Iterable[str]) -> dict[str, str]:
        """The states of the blobs that have a mark."""
        found: dict[str, str] = {}
        with self._database.engine.connect() as tx:
            for batch in _batches(names):
                query = sa.select(BLOBS.c.blob, BLOBS.c.state).where(BLOBS.c.blob.in_(batch))
                found |= {row.blob: row.state for row in tx.execute(query)}
        return found

    def set_gone(self, names: Iterable[str]) -> None:
        """Record that the objects of condemned blobs are deleted."""
        for batch in _batches(names):
            with self._database.transaction() as tx:
                which = BLOBS.c.blob.in_(batch) & (BLOBS.c.state == "condemned")
                tx.execute(sa.update(BLOBS).where(which).values(state="gone", at=database_time(tx)))

    def forget(self) -> None:
        """Delete marks of blobs that were deleted long ago."""
        with self._database.transaction() as tx:
            oldest = database_time(tx) - REMEMBERED_S
            tx.execute(sa.delete(BLOBS).where(BLOBS.c.state == "gone", BLOBS.c.at < oldest))


def _batches(names: Iterable[str]) -> Iterator[Sequence[str]]:
    """Sorted, so that two transactions lock in the same order."""
    ordered = sorted(set(names))
    for at in range(0, len(ordered), BATCH):
        yield ordered[at : at + BATCH]
