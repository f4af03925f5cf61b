"""Files of clients: their form, their rows, and rows and contents together.

    files = Files(settings, store)
    file = files.add("team", "batch", "calls.jsonl", draft)
    files.path(file.id, "team").open("rb")
    files.delete(file.id, "team")

A file of another owner, and one that has expired, is reported as unknown. Contents are blobs, so equal
contents are stored once, and a file that is deleted while a job uses it stays until the job lets go. Does
not know HTTP. May be called from any thread that runs no event loop.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field

from .errors import ApiError
from .jobs.blobs import BlobDraft
from .jobs.database import Place, Tx, one_page
from .jobs.store import Store
from .jobs.tables import META
from .settings import Settings

Purpose = Literal["batch", "user_data", "batch_output"]
UploadPurpose = Literal["batch", "user_data"]
"""What clients may upload: the requests of a batch, and audio. `batch_output` is written by the server."""

Order = Literal["asc", "desc"]

ID = re.compile(r"file-[0-9a-f]{32}")

ROLE = "content"
"""The role of the reference from a file to its blob."""

MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 30 * 24 * 3600
"""The bounds of `expires_after`, as at OpenAI."""

FILES = sa.Table(
    "forescribe_files",
    META,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("tenant", sa.String, key="owner", nullable=False),  # the name of the API key
    sa.Column("purpose", sa.String, nullable=False),
    sa.Column("filename", sa.String, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float),
    sa.Index("forescribe_files_of", "owner", "created_at", "id"),
    sa.Index("forescribe_files_expiry", "expires_at"),
)


class Files:
    """The files of one job database: rows, and contents as blobs."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings, self.store = settings, store

    def check_count(self, owner: str) -> None:
        """Raises ApiError `too_many_files` if the owner may have no further file."""
        if self.count(owner) >= self.settings.max_files_per_key:
            text = f"there are {self.settings.max_files_per_key} files already, the maximum; delete some"
            raise ApiError("too_many_files", text)

    def count(self, owner: str) -> int:
        """How many files the owner has, those of the server included."""
        query = sa.select(sa.func.count()).where(FILES.c.owner == owner, self._alive())
        with self.store.database.engine.connect() as tx:
            return int(tx.execute(query).scalar_one())

    def add(
        self,
        owner: str,
        purpose: Purpose,
        filename: str,
        content: BlobDraft,
        expires_after_s: float | None = None,
    ) -> StoredFile:
        """Keep a file, for `file_retention_s` unless told otherwise. Raises OutputError."""
        now = self.store.now()
        kept_s = self.settings.file_retention_s if expires_after_s is None else expires_after_s
        file = StoredFile(new_id(), owner, purpose, filename, content.size, now, now + kept_s)
        content.flush()
        blob = None
        try:
            with self.store.blobs.shared_lock():
                blob = content.commit()
                with self.store.transaction() as tx:
                    self.insert(tx, file, blob)
        except ApiError:
            if blob is not None:
                self.store.references.delete_unreferenced([blob])
            raise
        return file

    def insert(self, tx: Tx, file: StoredFile, blob: str) -> None:
        """Insert a file whose content is committed. Raises IntegrityError if it exists."""
        tx.execute(sa.insert(FILES).values(**asdict(file)))
        self.store.references.put(tx, file.id, ROLE, blob)

    def get(self, id: str, owner: str) -> StoredFile:
        """Raises ApiError `file_not_found`."""
        if ID.fullmatch(id):
            query = sa.select(FILES).where(FILES.c.id == id, FILES.c.owner == owner, self._alive())
            with self.store.database.engine.connect() as tx:
                row = tx.execute(query).one_or_none()
            if row is not None:
                return _file(row)
        raise ApiError("file_not_found", "there is no such file")

    def page(
        self, owner: str, limit: int, after: Place | None, order: Order, purpose: str | None
    ) -> tuple[list[StoredFile], bool]:
        """Up to `limit` files in order of creation, behind a place; and whether there are more."""
        query = sa.select(FILES).where(FILES.c.owner == owner, self._alive())
        if purpose is not None:
            query = query.where(FILES.c.purpose == purpose)
        query = one_page(query, FILES, after, limit, ascending=order == "asc")
        with self.store.database.engine.connect() as tx:
            files = [_file(row) for row in tx.execute(query)]
        return files[:limit], len(files) > limit

    def blob(self, id: str, owner: str) -> str:
        """The name of the content's blob. Raises ApiError `file_not_found`."""
        self.get(id, owner)
        name = self.store.references.get(id, ROLE)
        if name is None:  # deleted in between
            raise ApiError("file_not_found", "there is no such file")
        return name

    def path(self, id: str, owner: str) -> Path:
        """The content on disk, to be opened at once. Raises ApiError `file_not_found`."""
        try:
            return self.store.blobs.local(self.blob(id, owner))
        except FileNotFoundError as error:
            raise ApiError("file_not_found", "there is no such file") from error

    def delete(self, id: str, owner: str) -> None:
        """Delete a file. Raises ApiError `file_not_found`."""
        self.get(id, owner)
        self._erase(id)

    def erase_expired(self) -> int:
        """Delete the files that have expired, and return their number."""
        query = sa.select(FILES.c.id).where(FILES.c.expires_at <= self.store.now())
        with self.store.database.engine.connect() as tx:
            expired = list(tx.execute(query).scalars())
        for id in expired:
            self._erase(id)
        return len(expired)

    def _alive(self) -> sa.ColumnElement[bool]:
        return FILES.c.expires_at.is_(None) | (FILES.c.expires_at > self.store.now())

    def _erase(self, id: str) -> None:
        self.store.references.drop_all(id, sa.delete(FILES).where(FILES.c.id == id))


@dataclass(frozen=True)
class StoredFile:
    """A file's row, column by column; its content is a blob. Times are Unix seconds."""

    id: str
    owner: str  # name of the API key
    purpose: Purpose
    filename: str  # the client's name for it: a label, never a path
    size: int  # bytes
    created_at: float
    expires_at: float | None

    def view(self) -> FileObject:
        """The file's JSON for clients."""
        return FileObject(
            id=self.id,
            bytes=self.size,
            created_at=int(self.created_at),
            expires_at=None if self.expires_at is None else int(self.expires_at),
            filename=self.filename,
            purpose=self.purpose,
        )


class FileObject(BaseModel):
    """OpenAI's File object. `status` is deprecated there, and SDKs still require it."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Purpose
    status: Literal["processed"] = "processed"


class DeletedFile(BaseModel):
    """The answer to a deletion."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class ExpiresAfter(BaseModel):
    """When the file is deleted, counted from its creation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_EXPIRY_S, le=MAX_EXPIRY_S)


class FileForm(BaseModel):
    """OpenAI's request for a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    purpose: UploadPurpose
    expires_after: ExpiresAfter | None = None


def new_id() -> str:
    return f"file-{uuid4().hex}"


def derived_id(*parts: str) -> str:
    """The id of a file that the server writes: always the same for the same parts, so that a step which is
    repeated after a crash writes no second file."""
    return f"file-{sha256(':'.join(parts).encode()).hexdigest()[:32]}"


def _file(row: sa.Row[Any]) -> StoredFile:
    return StoredFile(**dict(zip(FILES.c.keys(), row, strict=True)))
