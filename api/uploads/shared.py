"""Resumable uploads for services on several machines: pieces are objects, the offset is a row.

    uploads = SharedUploads(store, executor, UploadLimits.of(settings))

The same rules and methods as `api.uploads.tus`. The bytes that arrive are collected in a local file; every
`PIECE_BYTES`, and at the end of a request, they become an object, and one transaction adds its reference and
moves the offset. So the offset is what is stored, for every replica, and a replica that dies loses the bytes
since the last piece.

One request at a time writes to an upload: it puts its process and a random token into the row. Whoever finds
another process there gets `locked`, until that process's heartbeat is declared dead
(`api.jobs.recovery`); then the token is replaced, and the earlier request, should it still live,
cannot move the offset any more.
"""

from __future__ import annotations

import io
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO, cast

import sqlalchemy as sa

from ..errors import ApiError
from ..jobs.database import database_time, hold
from ..jobs.tables import UPLOADS, WORKERS
from .tus import ID, PIECE, OpenUploads, Upload, UploadLimits, UploadPart, UploadStore

if TYPE_CHECKING:
    from ..jobs.blobs import BlobDraft
    from ..jobs.store import Store


PIECE_BYTES = 16 << 20
"""At most so many bytes are lost when a process dies."""

ROLE = "piece"
"""Of the references from an upload to its objects."""


class SharedUploads(UploadStore):
    """The uploads of all replicas, in one database and one blob store.

    Args:
        executor: this process, as its heartbeat names it.
    """

    def __init__(self, store: Store, executor: str, limits: UploadLimits) -> None:
        self.store, self.executor, self.limits = store, executor, limits
        self._writing: set[str] = set()  # tokens of this process's requests

    def get(self, id: str, owner: str) -> Upload:
        row = self._row(id, owner)
        return Upload(id, row.tenant, row.length, row.label, row.offset, row.client or "")

    def recover(self) -> None:
        """Nothing to do: what is stored is what the rows say."""

    def expire(self, older_s: float) -> None:
        """Also ends the locks of requests whose end could not be recorded."""
        with self.store.transaction() as tx:
            mine = (UPLOADS.c.executor == self.executor) & UPLOADS.c.token.not_in(self._writing)
            tx.execute(sa.update(UPLOADS).where(mine).values(executor=None, token=None))
            old = sa.select(UPLOADS.c.id, UPLOADS.c.tenant)
            old = old.where(UPLOADS.c.touched_at < database_time(tx) - older_s)
            expired = tx.execute(old).all()
        for row in expired:
            with suppress(ApiError):  # written to, or removed by another process
                self.delete(row.id, row.tenant)

    def _insert(self, upload: Upload) -> None:
        client = upload.counted_for
        row = {"id": upload.id, "tenant": upload.tenant, "length": upload.length}
        row |= {"label": upload.label, "client": client}
        with self.store.transaction() as tx:
            self.limits.check_open(_open_of(tx, client), upload.length)
            now = database_time(tx)
            tx.execute(sa.insert(UPLOADS).values(**row, offset=0, pieces=0, touched_at=now))

    def _writer(self, upload: Upload, lock: str) -> UploadPart:
        return SharedPart(upload, self.store, lock)

    @contextmanager
    def _reader(self, id: str, lock: str) -> Iterator[BinaryIO]:
        names = self.store.references.get_all(id, ROLE)
        with io.BufferedReader(_Joined(self.store, names), PIECE) as file:
            yield cast(BinaryIO, file)

    def _row(self, id: str, owner: str) -> sa.Row[tuple[object, ...]]:
        if ID.fullmatch(id):
            query = sa.select(UPLOADS).where(UPLOADS.c.id == id, UPLOADS.c.tenant == owner)
            with self.store.database.engine.connect() as tx:
                row = tx.execute(query).one_or_none()
            if row is not None:
                return row
        raise ApiError("not_found", "there is no such upload")

    def _remove(self, id: str) -> None:
        self.store.references.drop_all(id, sa.delete(UPLOADS).where(UPLOADS.c.id == id))

    @contextmanager
    def _locked(self, id: str, owner: str) -> Iterator[str]:
        """Lock the upload for a block, and yield the lock's token."""
        self._row(id, owner)
        token = secrets.token_hex(16)
        alive = sa.select(WORKERS.c.executor)
        free = UPLOADS.c.executor.is_(None) | UPLOADS.c.executor.not_in(alive)
        self._writing.add(token)
        try:
            with self.store.transaction() as tx:
                taken = tx.execute(
                    sa.update(UPLOADS)
                    .where(UPLOADS.c.id == id, free)
                    .values(executor=self.executor, token=token, touched_at=database_time(tx))
                )
            if not taken.rowcount:
                self._row(id, owner)  # it may be gone
                raise ApiError("locked", "another request is writing to this upload")
            try:
                yield token
            finally:
                with suppress(sa.exc.DBAPIError):  # the database is away: `expire` does it
                    with self.store.transaction() as tx:
                        which = (UPLOADS.c.id == id) & (UPLOADS.c.token == token)
                        tx.execute(
                            sa.update(UPLOADS).where(which).values(executor=None, token=None)
                        )
        finally:
            self._writing.discard(token)


def _open_of(tx: sa.Connection, client: str) -> OpenUploads:
    """The open uploads of a client. Until the transaction ends, no other process creates one for it."""
    hold(tx, f"forescribe_uploads {client}")
    query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(UPLOADS.c.length), 0))
    # Rows of earlier versions name no client.
    mine = sa.func.coalesce(UPLOADS.c.client, UPLOADS.c.tenant) == client
    count, size = tx.execute(query.where(mine)).one()
    return OpenUploads(count, int(size))


class SharedPart(UploadPart):
    """`token` is that of the lock."""

    def __init__(self, upload: Upload, store: Store, token: str) -> None:
        super().__init__(upload)
        self._store, self._id, self._token = store, upload.id, token
        self._stored = upload.offset
        self._piece: BlobDraft | None = None
        self._lock = threading.RLock()  # a cancelled request may still write when its block ends

    def close(self) -> None:
        try:
            self.sync()
        finally:
            self.discard()

    def _append(self, rest: memoryview) -> None:
        with self._lock:
            while rest:
                if self._piece is None:
                    self._piece = self._store.blobs.draft()
                head = rest[: PIECE_BYTES - self._piece.size]
                self._piece.write(bytes(head))
                self.offset, rest = self.offset + len(head), rest[len(head) :]
                if self._piece.size >= PIECE_BYTES:
                    self.sync()

    def sync(self) -> None:
        """Raises ApiError `conflict` too, if the upload was continued by another request or deleted."""
        with self._lock:
            piece = self._piece
            if piece is None:
                return
            name, size = piece.commit(), piece.size
            self._piece = None
            try:
                with self._store.transaction() as tx:
                    self._record(tx, name, size)
            except BaseException:
                with suppress(Exception):  # the sweep removes it later
                    self._store.references.delete_unreferenced([name])
                raise
            self._stored += size

    def discard(self) -> None:
        """Remove the local file."""
        with self._lock:
            if self._piece is not None:
                self._piece.discard()
                self._piece = None

    def _record(self, tx: sa.Connection, name: str, size: int) -> None:
        mine = (UPLOADS.c.id == self._id) & (UPLOADS.c.token == self._token)
        moved = tx.execute(
            sa.update(UPLOADS)
            .where(mine, UPLOADS.c.offset == self._stored)
            .values(
                offset=UPLOADS.c.offset + size,
                pieces=UPLOADS.c.pieces + 1,
                touched_at=database_time(tx),
            )
            .returning(UPLOADS.c.pieces)
        )
        pieces = moved.scalar_one_or_none()
        if pieces is None:
            raise ApiError("conflict", "the upload was continued by another request, or deleted")
        self._store.references.put(tx, self._id, ROLE, name, pieces - 1)


class _Joined(io.RawIOBase):
    """The bytes of several blobs, one after the other; only one piece is in memory."""

    def __init__(self, store: Store, names: Sequence[str]) -> None:
        self._read: Callable[[str], bytes] = store.blobs.read
        self._names = list(names)
        self._next, self._rest = 0, memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if (offset, whence) != (0, io.SEEK_SET):
            raise io.UnsupportedOperation("only to the beginning")
        self._next, self._rest = 0, memoryview(b"")
        return 0

    def readinto(self, buffer: object) -> int:
        target = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        while not self._rest and self._next < len(self._names):
            self._rest = memoryview(self._read(self._names[self._next]))
            self._next += 1
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
