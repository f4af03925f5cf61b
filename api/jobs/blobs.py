"""Blobs: bytes named by their hash. A blob is complete and stored, or it does not exist.

    draft = blobs.draft()
    draft.write(b"...")
    with blobs.shared_lock():            # until a row refers to the blob
        name = draft.commit()
        ...
    with blobs.exclusive_lock():         # now no blob is without its row
        blobs.delete(name)

`BlobStore` is the interface: `Blobs` keeps files on a local disk, `api.jobs.object_blobs` objects in S3 and
the like. Two ways protect a blob whose row is not committed yet: locks, where all processes share a disk, and
marks in the database (`api.jobs.references`), where they do not; `marked` says which.

On a disk equal contents are stored once. A process that dies leaves drafts, which `sweep` removes. Does not
know which rows refer to a blob.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO, ClassVar

from ..errors import disk_errors

NAME = re.compile(r"[0-9a-f]{64}")

PIECE = 1 << 20
"""Bytes that are copied at a time."""


class BlobStore(ABC):
    """Blobs by name, which begins with the SHA-256 of the bytes; drafts of them are local files below `root`.
    Methods that write raise OutputError for a local disk, StorageError for object storage that refuses or
    does not answer."""

    marked: ClassVar[bool]
    """Whether references are protected by marks in the database instead of locks."""

    place: str
    """Tells stores apart: processes with equal places see the same blobs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._drafts = root / "drafts"
        with disk_errors():
            self._drafts.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def draft(self) -> BlobDraft:
        """Begin a new blob. Raises OutputError."""

    @abstractmethod
    def put(self, data: bytes) -> str:
        """Store the bytes and return their name."""

    def copy(self, file: BinaryIO) -> BlobDraft:
        """A draft with the whole content of a file. Raises OutputError."""
        draft = self.draft()
        try:
            file.seek(0)
            while piece := file.read(PIECE):
                draft.write(piece)
        except BaseException:
            draft.discard()
            raise
        return draft

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError."""

    @abstractmethod
    def held(self, name: str) -> AbstractContextManager[Path]:
        """A local file with the blob, which exists for the block. Raises FileNotFoundError."""

    @abstractmethod
    def local(self, name: str) -> Path:
        """A local file with the blob, to be opened at once. Raises FileNotFoundError."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete the blob, if it exists."""

    @abstractmethod
    def names(self, older_s: float = 0.0) -> Iterator[str]:
        """All blobs; with `older_s`, those stored longer ago."""

    def probe(self) -> None:
        """Write and remove a byte. Raises OutputError, StorageError if that fails."""
        draft = self.draft()
        try:
            draft.write(b"\0")
            draft.flush()
        finally:
            draft.discard()

    def sweep(self, older_s: float) -> int:
        """Remove local files that nobody has used for `older_s` seconds, and return their number."""
        oldest, count = time.time() - older_s, 0
        for path in self._drafts.iterdir():
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()
                    count += 1
        return count

    @abstractmethod
    def close(self) -> None:
        """Remove what was only needed by this process."""

    @property
    def free(self) -> int:
        """Free bytes on the local disk."""
        return shutil.disk_usage(self.root).free

    @property
    def requests(self) -> Mapping[str, int]:
        """Requests to object storage so far, by kind; none on a local disk."""
        return {}

    @abstractmethod
    def shared_lock(self) -> AbstractContextManager[None]:
        """Hold while a blob may exist that no row refers to yet. Several holders are possible."""

    @abstractmethod
    def exclusive_lock(self) -> AbstractContextManager[None]:
        """Hold while blobs are deleted: no other process or thread holds `shared_lock`."""


class BlobDraft(ABC):
    """A blob while it is written to a local file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._hash = hashlib.sha256()
        with disk_errors():
            self._file = path.open("xb")

    @property
    def name(self) -> str:
        """The SHA-256 of the bytes written so far, as hexadecimal digits."""
        return self._hash.hexdigest()

    def write(self, data: bytes) -> None:
        """Append bytes. Raises OutputError."""
        with disk_errors():
            self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    @abstractmethod
    def flush(self) -> None:
        """Complete the local file: afterwards `path` can be read. Raises OutputError."""

    @abstractmethod
    def commit(self) -> str:
        """Store the blob and return its name. Raises OutputError, StorageError."""

    def discard(self) -> None:
        """Remove the local file; does nothing after `commit`."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):  # a read-only disk: `sweep` removes it later
            self.path.unlink(missing_ok=True)


class Blobs(BlobStore):
    """Blobs at `<root>/<aa>/<sha256>`, and drafts on the same file system, so that a rename is atomic."""

    marked = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.place = f"folder:{self._identity()}"

    def draft(self) -> Draft:
        return Draft(self, self._drafts / secrets.token_hex(16))

    def put(self, data: bytes) -> str:
        draft = self.draft()
        try:
            draft.write(data)
            return draft.commit()
        finally:
            draft.discard()

    def read(self, name: str) -> bytes:
        return self.path(name).read_bytes()

    def path(self, name: str) -> Path:
        """Where the blob is, or would be."""
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a blob's name")
        return self.root / name[:2] / name

    def held(self, name: str) -> AbstractContextManager[Path]:
        return nullcontext(self.local(name))

    def local(self, name: str) -> Path:
        path = self.path(name)
        path.stat()
        return path

    def delete(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)

    def names(self, older_s: float = 0.0) -> Iterator[str]:
        newest = time.time() - older_s
        for path in self.root.glob("??/*"):
            if NAME.fullmatch(path.name) and (not older_s or path.stat().st_mtime <= newest):
                yield path.name

    def close(self) -> None:
        """All files here outlive the process, or are removed by `sweep`."""

    def shared_lock(self) -> AbstractContextManager[None]:
        return self._locked(fcntl.LOCK_SH)

    def exclusive_lock(self) -> AbstractContextManager[None]:
        return self._locked(fcntl.LOCK_EX)

    @contextmanager
    def _locked(self, operation: int) -> Iterator[None]:
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, operation)
            yield
        finally:
            os.close(descriptor)

    def _identity(self) -> str:
        """The name of this folder, for all processes that share it. Raises OutputError."""
        path = self.root / "identity"
        with disk_errors():
            if not path.exists():
                new = self._drafts / secrets.token_hex(16)
                new.write_text(secrets.token_hex(16))
                with suppress(FileExistsError):
                    os.link(new, path)  # complete, or not there; the first one stays
                new.unlink()
            return path.read_text()


class Draft(BlobDraft):
    """A draft of a blob on this disk. `flush` does the slow part of `commit` in advance."""

    def __init__(self, blobs: Blobs, path: Path) -> None:
        super().__init__(path)
        self.blobs = blobs

    def flush(self) -> None:
        """Write everything to disk."""
        with disk_errors():
            self._file.flush()
            os.fsync(self._file.fileno())

    def commit(self) -> str:
        """Make the blob durable, directory entry included."""
        with disk_errors():
            self.flush()
            self._file.close()
            move_durably(self.path, self.blobs.path(self.name))
        return self.name


def move_durably(source: Path, target: Path) -> None:
    """Rename a file that is on disk, and write its new directory entry to disk too."""
    target.parent.mkdir(exist_ok=True)
    os.replace(source, target)
    for folder in (target.parent, target.parent.parent):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
