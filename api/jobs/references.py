"""References from jobs to blobs, and marks that decide which blobs in object storage are deleted.

    references.put(tx, job, "audio", blob)
    references.drop(job, "audio")        # and the blob, if no other row refers to it

A blob is deleted with the last row that refers to it. Where all processes share a disk, a file lock protects
a blob whose row is not committed yet. In object storage a mark does, decided once for all machines:

    marks.keep(tx, name)                 # with the row that refers to the blob; raises if it is condemned
    marks.condemn(tx, names)             # those without a reference; from then on `keep` refuses them

Both sides write the same row, so the database lets only one of them win: either the reference is committed,
then the blob is not condemned; or the blob is condemned, then the reference is refused and its writer stores
the blob again. This holds whatever clocks, pauses and deaths of processes do, because a name is never used
for a second object (`api.jobs.object_blobs`). A condemned blob is listed until its object is deleted, by
whichever process does it, and its mark stays for `REMEMBERED_S` to refuse writers that were suspended.
Does not know what the blobs hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import sqlalchemy as sa

from forescribe.asr.errors import OutputError

from .blobs import BlobStore
from .database import Database, Tx, database_time, insert_new
from .tables import BLOBS, JOBS, REFERENCES

ORPHAN_S = 3600.0
"""Age of an object without a reference at which `sweep_objects` takes it for one that a dead process left. A
younger one may be on its way into the database; if it takes longer, it is stored again."""

REMEMBERED_S = 30 * 24 * 3600.0
"""How long the mark of a deleted blob is kept."""

BATCH = 500
"""Names in one statement."""


class References:
    """The references of all jobs of one database; `k` numbers blobs of the same role."""

    def __init__(self, database: Database, blobs: BlobStore) -> None:
        self._database, self._blobs = database, blobs
        self._marks = BlobMarks(database) if blobs.marked else None

    def get(self, job: str, role: str, k: int = 0) -> str | None:
        with self._database.engine.connect() as tx:
            return self.get_in(tx, job, role, k)

    def get_in(self, tx: Tx, job: str, role: str, k: int = 0) -> str | None:
        """As `get`, within a transaction."""
        query = sa.select(REFERENCES.c.blob).where(_is(job, role, k))
        return tx.execute(query).scalar_one_or_none()

    def last_in(self, tx: Tx, job: str, role: str) -> tuple[int, str] | None:
        """The highest `k` of a role, and its blob."""
        query = sa.select(REFERENCES.c.k, REFERENCES.c.blob).where(
            REFERENCES.c.job == job, REFERENCES.c.role == role
        )
        row = tx.execute(query.order_by(REFERENCES.c.k.desc()).limit(1)).one_or_none()
        return None if row is None else (row.k, row.blob)

    def get_all(self, job: str, role: str) -> list[str]:
        """The blobs of a role, ordered by `k`."""
        query = sa.select(REFERENCES.c.blob).where(
            REFERENCES.c.job == job, REFERENCES.c.role == role
        )
        with self._database.engine.connect() as tx:
            return list(tx.execute(query.order_by(REFERENCES.c.k)).scalars())

    def put(self, tx: Tx, job: str, role: str, blob: str, k: int = 0) -> None:
        """Refer to a blob. Raises OutputError if it is being deleted; the caller stores it again."""
        if self._marks is not None:
            self._marks.keep(tx, blob)
        old = self.get_in(tx, job, role, k)
        if old is None:
            tx.execute(sa.insert(REFERENCES).values(job=job, role=role, k=k, blob=blob))
        elif old != blob:
            tx.execute(sa.update(REFERENCES).where(_is(job, role, k)).values(blob=blob))

    def drop(self, job: str, role: str) -> None:
        """Remove the references of a role, and blobs that no row refers to any more."""
        self._remove(job, (REFERENCES.c.job == job) & (REFERENCES.c.role == role))

    def drop_up_to(self, job: str, role: str, k: int) -> None:
        """As `drop`, but those up to number `k`."""
        which = (REFERENCES.c.job == job) & (REFERENCES.c.role == role) & (REFERENCES.c.k <= k)
        self._remove(job, which)

    def drop_all(self, job: str, *also: sa.Delete) -> None:
        """Remove all references of a job, and execute further statements in the same transaction."""
        self._remove(job, REFERENCES.c.job == job, *also)

    def delete_unreferenced(self, names: Iterable[str]) -> None:
        """Delete those of the blobs that no row refers to."""
        names = set(names)
        with self._blobs.exclusive_lock():
            with self._database.transaction() as tx:
                unreferenced = self._condemned(tx, names)
            self._delete(unreferenced)

    def sweep(self) -> int:
        """Delete all blobs on this disk that no row refers to, and return their number. A process that dies
        between writing a blob and its row leaves one."""
        with self._blobs.exclusive_lock():
            names = set(self._blobs.names())
            with self._database.engine.connect() as tx:
                unreferenced = self._unreferenced(tx, names)
            self._delete(unreferenced)
        return len(unreferenced)

    def sweep_objects(self, older_s: float = ORPHAN_S) -> int:
        """Delete objects that no row refers to, once they are `older_s` seconds old, and return their
        number. Lists the whole store."""
        assert self._marks is not None
        listed = set(self._blobs.names(older_s))
        states = self._marks.states(listed)
        late = {name for name in listed if states.get(name) == "gone"}  # delayed in the network
        for name in (listed - states.keys()) | set(self._marks.abandoned()):
            # One transaction each: locks are held briefly, in no order.
            with self._database.transaction() as tx:
                late |= set(self._marks.condemn(tx, [name]))
        self._delete(late)
        self._marks.forget()
        return len(late)

    def delete_condemned(self) -> None:
        """Delete objects whose deletion did not succeed when they lost their last reference."""
        if self._marks is not None:
            self._delete(self._marks.condemned())

    def _remove(self, job: str, which: sa.ColumnElement[bool], *also: sa.Delete) -> None:
        with self._blobs.exclusive_lock():
            with self._database.transaction() as tx:
                # Runs of the job that refer to blobs at the same time wait, and find it gone.
                tx.execute(sa.select(JOBS.c.id).where(JOBS.c.id == job).with_for_update()).all()
                names = self._names(tx, which)
                if self._marks is not None:
                    self._marks.lock(tx, names)
                tx.execute(sa.delete(REFERENCES).where(which))
                for statement in also:
                    tx.execute(statement)
                unreferenced = self._condemned(tx, names)
            self._delete(unreferenced)

    def _condemned(self, tx: Tx, names: Iterable[str]) -> list[str]:
        """The blobs to delete once the transaction is committed."""
        if self._marks is not None:
            return self._marks.condemn(tx, names)
        return self._unreferenced(tx, names)

    def _delete(self, names: Iterable[str]) -> None:
        names = list(names)
        for name in names:
            self._blobs.delete(name)
            if self._marks is not None:
                self._marks.set_gone(name)

    def _names(self, tx: Tx, which: sa.ColumnElement[bool]) -> set[str]:
        return set(tx.execute(sa.select(REFERENCES.c.blob).where(which)).scalars())

    def _unreferenced(self, tx: Tx, names: Iterable[str]) -> list[str]:
        names, referenced = sorted(set(names)), set[str]()
        for at in range(0, len(names), BATCH):
            referenced |= self._names(tx, REFERENCES.c.blob.in_(names[at : at + BATCH]))
        return [name for name in names if name not in referenced]


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

    def set_gone(self, name: str) -> None:
        """Record that the object of a condemned blob is deleted."""
        with self._database.transaction() as tx:
            which = (BLOBS.c.blob == name) & (BLOBS.c.state == "condemned")
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


def _is(job: str, role: str, k: int) -> sa.ColumnElement[bool]:
    return (REFERENCES.c.job == job) & (REFERENCES.c.role == role) & (REFERENCES.c.k == k)
