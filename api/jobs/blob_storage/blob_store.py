"""The interface of blob stores: `api.jobs.storage.blobs` on a local disk, `object_blobs` on S3 and the like.

A blob's name begins with the SHA-256 of its bytes. A blob is complete, or it does not exist. Two ways protect
a blob whose row is not committed yet: locks, where all processes share a disk, and marks in the database
(`blob_marks`), where they do not; `marked` says which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol


class BlobDraft(Protocol):
    """A blob while it is written to a local file."""

    path: Path
    size: int

    @property
    def name(self) -> str:
        """The SHA-256 of the bytes written so far, as hexadecimal digits."""

    def write(self, data: bytes) -> None:
        """Append bytes. Raises OutputError."""

    def flush(self) -> None:
        """Complete the local file: afterwards `path` can be read. Raises OutputError."""

    def commit(self) -> str:
        """Store the blob and return its name. Raises OutputError, StorageError."""

    def discard(self) -> None:
        """Remove the local file; does nothing after `commit`."""


class BlobStore(Protocol):
    """Blobs by name. Methods that write raise OutputError for a local disk, StorageError for object storage
    that refuses or does not answer."""

    marked: bool
    """Whether references are protected by marks in the database instead of locks."""

    @property
    def place(self) -> str:
        """Tells stores apart: processes with equal places see the same blobs."""

    def draft(self) -> BlobDraft: ...

    def put(self, data: bytes) -> str:
        """Store the bytes and return their name."""

    def copy(self, file: BinaryIO) -> BlobDraft:
        """A draft with the whole content of a file."""

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError."""

    def held(self, name: str) -> AbstractContextManager[Path]:
        """A local file with the blob, which exists for the block. Raises FileNotFoundError."""

    def local(self, name: str) -> Path:
        """A local file with the blob, to be opened at once. Raises FileNotFoundError."""

    def delete(self, name: str) -> None:
        """Delete the blob, if it exists."""

    def names(self, older_s: float = 0.0) -> Iterator[str]:
        """All blobs; with `older_s`, those stored longer ago."""

    def probe(self) -> None:
        """Write and remove a byte. Raises OutputError, StorageError."""

    def sweep(self, older_s: float) -> int:
        """Remove local files that nobody has used for `older_s` seconds, and return their number."""

    def close(self) -> None:
        """Remove what was only needed by this process."""

    @property
    def free(self) -> int:
        """Free bytes on the local disk."""

    @property
    def requests(self) -> Mapping[str, int]:
        """Requests to object storage so far, by kind; none on a local disk."""

    def shared_lock(self) -> AbstractContextManager[None]:
        """Hold while a blob may exist that no row refers to yet. Several holders are possible."""

    def exclusive_lock(self) -> AbstractContextManager[None]:
        """Hold while blobs are deleted."""
