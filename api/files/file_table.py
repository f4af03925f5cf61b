"""The rows of files: inserting, reading in pages, deleting.

Does not know blobs: the class `Files` keeps rows and contents together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import sqlalchemy as sa

from ..jobs.storage.database import Database, Tx
from ..jobs.storage.tables import META
from .stored_file import StoredFile

FILES = sa.Table(
    "forescribe_files",
    META,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("tenant", sa.String, nullable=False),  # the owner: the name of the API key
    sa.Column("purpose", sa.String, nullable=False),
    sa.Column("filename", sa.String, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float),
    sa.Index("forescribe_files_of", "tenant", "created_at", "id"),
    sa.Index("forescribe_files_expiry", "expires_at"),
)

Order = Literal["asc", "desc"]


class FileTable:
    """The files of one database; `now` gives the time in Unix seconds."""

    def __init__(self, database: Database, now: Callable[[], float]) -> None:
        self._database, self._now = database, now

    def insert(self, tx: Tx, file: StoredFile) -> None:
        """Raises IntegrityError if there is a file with this id."""
        tx.execute(
            sa.insert(FILES).values(
                id=file.id,
                tenant=file.owner,
                purpose=file.purpose,
                filename=file.filename,
                size=file.size,
                created_at=file.created_at,
                expires_at=file.expires_at,
            )
        )

    def get(self, id: str, owner: str | None = None) -> StoredFile | None:
        """The file; None if it does not exist, has expired or belongs to another owner."""
        with self._database.engine.connect() as tx:
            return self.get_in(tx, id, owner)

    def get_in(self, tx: Tx, id: str, owner: str | None = None) -> StoredFile | None:
        """As `get`, within a transaction."""
        query = sa.select(FILES).where(FILES.c.id == id, self._alive())
        if owner is not None:
            query = query.where(FILES.c.tenant == owner)
        row = tx.execute(query).one_or_none()
        return None if row is None else _file(row)

    def page(
        self, owner: str, limit: int, after: str | None, order: Order, purpose: str | None
    ) -> tuple[list[StoredFile], bool]:
        """Up to `limit` files in order of creation, following file `after`; and whether there are more."""
        query = sa.select(FILES).where(FILES.c.tenant == owner, self._alive())
        if purpose is not None:
            query = query.where(FILES.c.purpose == purpose)
        key = sa.tuple_(FILES.c.created_at, FILES.c.id)
        with self._database.engine.connect() as tx:
            if after is not None:
                last = self.get_in(tx, after, owner)
                if last is None:
                    return [], False
                place = sa.tuple_(sa.literal(last.created_at), sa.literal(last.id))
                query = query.where(key > place if order == "asc" else key < place)
            columns = (FILES.c.created_at, FILES.c.id)
            query = query.order_by(*(c.asc() if order == "asc" else c.desc() for c in columns))
            files = [_file(row) for row in tx.execute(query.limit(limit + 1))]
        return files[:limit], len(files) > limit

    def count(self, owner: str) -> int:
        """How many files the owner has, those of the server included."""
        query = sa.select(sa.func.count()).where(FILES.c.tenant == owner, self._alive())
        with self._database.engine.connect() as tx:
            return int(tx.execute(query).scalar_one())

    def expired(self) -> list[str]:
        query = sa.select(FILES.c.id).where(FILES.c.expires_at <= self._now())
        with self._database.engine.connect() as tx:
            return list(tx.execute(query).scalars())

    def _alive(self) -> sa.ColumnElement[bool]:
        return FILES.c.expires_at.is_(None) | (FILES.c.expires_at > self._now())


def _file(row: Any) -> StoredFile:
    return StoredFile(
        id=row.id,
        owner=row.tenant,
        purpose=row.purpose,
        filename=row.filename,
        size=row.size,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )
