"""Files of clients: rows and contents together.

    files = Files(settings, store)
    file = files.add("team", "batch", "calls.jsonl", draft)
    with files.open(file.id, "team") as content: ...
    files.delete(file.id, "team")

A file of another owner, and one that has expired, is reported as unknown. Contents are blobs, so equal
contents are stored once, and a file that is deleted while a job uses it stays until the job lets go. Does
not know HTTP. May be called from any thread that runs no event loop.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import sqlalchemy as sa

from ..errors import ApiError
from ..jobs.blob_storage.blob_store import BlobDraft
from ..jobs.storage.database import Tx
from ..jobs.storage.store import Store
from ..jobs.storage_shares import StorageShares
from ..settings import Settings
from .file_table import FILES, FileTable, Order
from .stored_file import ID, Purpose, StoredFile, new_id

ROLE = "content"
"""The role of the reference from a file to its blob."""

MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 30 * 24 * 3600
"""The bounds of `expires_after`, as at OpenAI."""


class Files:
    """The files of one job database."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings, self.store = settings, store
        self.table = FileTable(store.database, store.now)
        self.shares = StorageShares(settings, store)

    def check_count(self, owner: str) -> None:
        """Raises ApiError if the owner may have no further file: `too_many_files`,
        `storage_quota_exceeded`."""
        if self.table.count(owner) >= self.settings.max_files_per_key:
            text = f"there are {self.settings.max_files_per_key} files already, the maximum; delete some"
            raise ApiError("too_many_files", text)
        self.shares.check(owner)

    def add(
        self,
        owner: str,
        purpose: Purpose,
        filename: str,
        content: BlobDraft,
        expires_after_s: float | None = None,
    ) -> StoredFile:
        """Keep a file, for `file_retention_s` unless told otherwise. Raises ApiError
        `storage_quota_exceeded`, OutputError."""
        now = self.store.now()
        kept_s = self.settings.file_retention_s if expires_after_s is None else expires_after_s
        file = StoredFile(new_id(), owner, purpose, filename, content.size, now, now + kept_s)
        content.flush()
        blob = None
        try:
            with self.store.blobs.shared_lock():
                blob = content.commit()
                with self.store.transaction() as tx, self.shares.counted(tx, owner):
                    self.insert(tx, file, blob)
        except ApiError:
            if blob is not None:
                self.store.references.delete_unreferenced([blob])
            raise
        return file

    def insert(self, tx: Tx, file: StoredFile, blob: str) -> None:
        """Insert a file whose content is committed. Raises IntegrityError if it exists."""
        self.table.insert(tx, file)
        self.store.references.put(tx, file.id, ROLE, blob, owner=file.owner, size=file.size)

    def get(self, id: str, owner: str) -> StoredFile:
        """Raises ApiError `file_not_found`."""
        file = self.table.get(id, owner) if ID.fullmatch(id) else None
        if file is None:
            raise ApiError("file_not_found", "there is no such file")
        return file

    def page(
        self, owner: str, limit: int, after: str | None, order: Order, purpose: str | None
    ) -> tuple[list[StoredFile], bool]:
        """The owner's files by time of creation, and whether there are more."""
        return self.table.page(owner, limit, after, order, purpose)

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

    def open(self, id: str, owner: str) -> BinaryIO:
        """The content, which the caller closes. Raises ApiError `file_not_found`."""
        try:
            return self.path(id, owner).open("rb")
        except FileNotFoundError as error:
            raise ApiError("file_not_found", "there is no such file") from error

    def delete(self, id: str, owner: str) -> None:
        """Delete a file. Raises ApiError `file_not_found`."""
        self.get(id, owner)
        self._erase(id)

    def erase_expired(self) -> int:
        """Delete the files that have expired, and return their number."""
        expired = self.table.expired()
        for id in expired:
            self._erase(id)
        return len(expired)

    def _erase(self, id: str) -> None:
        self.store.references.drop_all(id, sa.delete(FILES).where(FILES.c.id == id))
