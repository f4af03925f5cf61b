"""Blobs: bytes under the name of their hash, whole and on disk, or not there at all.

    draft = blobs.draft()
    draft.write(b"...")
    with blobs.keeping():                # until a row refers to it
        name = draft.commit()
        ...
    with blobs.dropping():               # nobody is between commit and row now
        blobs.delete(name)

A second identical blob is the first one. A process that dies leaves drafts, which `sweep` takes away.
Knows nothing of who refers to what.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from forescribe.asr.errors import OutputError

NAME = re.compile(r"[0-9a-f]{64}")

PIECE = 1 << 20


class Blobs:
    """`<root>/<aa>/<sha256>`; everything is on one file system, so that a rename is whole."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._drafts = root / "drafts"
        with storing():
            self._drafts.mkdir(parents=True, exist_ok=True)

    def draft(self) -> Draft:
        """Raises OutputError."""
        return Draft(self, self._drafts / secrets.token_hex(16))

    def put(self, data: bytes) -> str:
        """Its name. Raises OutputError."""
        draft = self.draft()
        try:
            draft.write(data)
            return draft.commit()
        finally:
            draft.discard()

    def copy(self, file: BinaryIO) -> Draft:
        """A draft with all that the file holds. Raises OutputError."""
        draft = self.draft()
        try:
            file.seek(0)
            while piece := file.read(PIECE):
                draft.write(piece)
        except BaseException:
            draft.discard()
            raise
        return draft

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError."""
        return self.path(name).read_bytes()

    def path(self, name: str) -> Path:
        """Where it is, or would be."""
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no blob's name")
        return self.root / name[:2] / name

    def delete(self, name: str) -> None:
        """Does nothing where it is not there."""
        self.path(name).unlink(missing_ok=True)

    def names(self) -> Iterator[str]:
        for path in self.root.glob("??/*"):
            if NAME.fullmatch(path.name):
                yield path.name

    def probe(self) -> None:
        """Raises OutputError where nothing can be written."""
        draft = self.draft()
        try:
            draft.write(b"\0")
            draft.flush()
        finally:
            draft.discard()

    def sweep(self, older_s: float) -> int:
        """Removes drafts that nobody has written to for so long. How many there were."""
        oldest, count = time.time() - older_s, 0
        for path in self._drafts.iterdir():
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()
                    count += 1
        return count

    @property
    def free(self) -> int:
        """Bytes that the disk has left."""
        return shutil.disk_usage(self.root).free

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """While a blob may be there and no row says so. Several may."""
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextmanager
    def dropping(self) -> Iterator[None]:
        """While nobody is in `keeping`, in this process or another."""
        with self._locked(fcntl.LOCK_EX):
            yield

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, how)
            yield
        finally:
            os.close(descriptor)


class Draft:
    """A blob that is being written."""

    def __init__(self, blobs: Blobs, path: Path) -> None:
        self.blobs, self.path = blobs, path
        self.size = 0
        self._hash = hashlib.sha256()
        with storing():
            self._file = path.open("xb")

    @property
    def name(self) -> str:
        """Of what was written so far."""
        return self._hash.hexdigest()

    def write(self, data: bytes) -> None:
        """Raises OutputError."""
        with storing():
            self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    def commit(self) -> str:
        """Its name; it is on disk, and so is its directory's entry. Raises OutputError."""
        with storing():
            self.flush()
            self._file.close()
            place(self.path, self.blobs.path(self.name))
        return self.name

    def flush(self) -> None:
        """The slow part of `commit`, beforehand. Raises OutputError."""
        with storing():
            self._file.flush()
            os.fsync(self._file.fileno())

    def discard(self) -> None:
        """Does nothing after `commit`."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):  # a disk that is read only: it is swept away later
            self.path.unlink(missing_ok=True)


def place(source: Path, target: Path) -> None:
    """Renames a file that is on disk, and puts its directory's entry there too."""
    target.parent.mkdir(exist_ok=True)
    os.replace(source, target)
    for folder in (target.parent, target.parent.parent):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def storing() -> Iterator[None]:
    """What the disk refuses, as an OutputError: `storage_full`, `unwritable_output`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        text = f"the job store cannot be written ({error.strerror}): free some space, or see to it"
        raise OutputError(text, code="storage_full" if full else "unwritable_output") from error
