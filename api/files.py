"""Files of clients: the requests of a batch, and audio for its lines. Their rows, and contents as blobs.

A file of another owner, and one that has expired, is reported as unknown. Equal contents are stored once, and
a file that is deleted while a job uses it stays until the job lets go. Does not know HTTP. May be called from
any thread that runs no event loop.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field

from .errors import ApiError
from .jobs.blobs import BlobDraft
from .jobs.database import Place, one_page
from .jobs.store import Store
from .jobs.tables import FILES

Purpose = Literal["batch", "user_data", "batch_output"]

ID = re.compile(r"file-[0-9a-f]{32}")

ROLE = "content"
"""The role of the reference from a file to its blob."""


class Files:
    """The files of one job database."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def add(
        self, owner: str, purpose: Purpose, filename: str, content: BlobDraft, kept_s: float
    ) -> StoredFile:
        """Keep a file for so many seconds. Raises OutputError."""
        now = self.store.now()
        id = f"file-{uuid4().hex}"
        file = StoredFile(id, owner, purpose, filename, content.size, now, now + kept_s)
        content.flush()
        with self.store.blobs.shared_lock():
            blob = content.commit()
            with self.store.transaction() as tx:
                tx.execute(sa.insert(FILES).values(**asdict(file)))
                self.store.references.put(tx, id, ROLE, blob)
        return file

    def get(self, id: str, owner: str) -> StoredFile:
        """Raises ApiError `file_not_found`."""
        query = sa.select(FILES).where(FILES.c.id == id, FILES.c.owner == owner, self._alive())
        with self.store.database.engine.connect() as tx:
            row = tx.execute(query).one_or_none() if ID.fullmatch(id) else None
        if row is None:
            raise _unknown()
        return StoredFile(*row)

    def page(self, owner: str, limit: int, after: Place | None) -> tuple[list[StoredFile], bool]:
        """Up to `limit` files, the latest first, behind a place; and whether there are more."""
        query = sa.select(FILES).where(FILES.c.owner == owner, self._alive())
        with self.store.database.engine.connect() as tx:
            rows = tx.execute(one_page(query, FILES, after, limit)).all()
        return [StoredFile(*row) for row in rows[:limit]], len(rows) > limit

    def path(self, id: str, owner: str) -> Path:
        """The content on disk, to be opened at once. Raises ApiError `file_not_found`."""
        self.get(id, owner)
        name = self.store.references.get(id, ROLE)
        try:
            if name is not None:
                return self.store.blobs.local(name)
        except FileNotFoundError:
            pass  # deleted in between
        raise _unknown()

    def delete(self, id: str, owner: str) -> None:
        """Raises ApiError `file_not_found`."""
        self.get(id, owner)
        self._erase(id)

    def erase_expired(self) -> None:
        query = sa.select(FILES.c.id).where(FILES.c.expires_at <= self.store.now())
        with self.store.database.engine.connect() as tx:
            expired = list(tx.execute(query).scalars())
        for id in expired:
            self._erase(id)

    def _alive(self) -> sa.ColumnElement[bool]:
        return FILES.c.expires_at.is_(None) | (FILES.c.expires_at > self.store.now())

    def _erase(self, id: str) -> None:
        self.store.references.drop_all(id, sa.delete(FILES).where(FILES.c.id == id))


@dataclass(frozen=True)
class StoredFile:
    """A file's row, column by column. Times are Unix seconds."""

    id: str
    owner: str  # name of the API key
    purpose: Purpose
    filename: str  # the client's name for it: a label, never a path
    size: int  # bytes
    created_at: float
    expires_at: float | None

    def view(self) -> dict[str, Any]:
        """OpenAI's File object. `status` is deprecated there, and SDKs still require it."""
        expires_at = None if self.expires_at is None else int(self.expires_at)
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size,
            "created_at": int(self.created_at),
            "expires_at": expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
        }


class ExpiresAfter(BaseModel):
    """When the file is deleted, counted from its creation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=30 * 24 * 3600)


class FileForm(BaseModel):
    """OpenAI's request for a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    purpose: Literal["batch", "user_data"]
    expires_after: ExpiresAfter | None = None


def _unknown() -> ApiError:
    return ApiError("file_not_found", "there is no such file")
