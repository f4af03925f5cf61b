"""Copies of objects in local files, in pieces; a copy that breaks off continues where it was.

    copy = Copy(backend, "calls/a.mp3", Path("/spool/1"))
    entry = copy.run(retries)

Knows one object and one file; nothing of what becomes of the file.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import OutputError
from .backends import Backend, Entry
from .retrying import Retries
from .storage_errors import UnavailableError


class Copy:
    """One copy. With `etag`, only of the version with this tag. `progress` receives the number of bytes so
    far and may raise, which ends the copy."""

    def __init__(
        self,
        backend: Backend,
        key: str,
        path: Path,
        etag: str | None = None,
        progress: Callable[[int], object] = lambda done: None,
    ) -> None:
        self.backend, self.key, self.path, self.etag = backend, key, path, etag
        self.progress = progress
        self.done = 0  # bytes
        self._entry: Entry | None = None
        self._digest = hashlib.md5(usedforsecurity=False)

    @property
    def md5(self) -> str:
        """The MD5 of what was copied."""
        return self._digest.hexdigest()

    def run(self, retries: Retries) -> Entry:
        """Copy the object; attempts count from the last progress. Raises LocatedError, and OutputError for
        the file."""
        with disk_errors(self.path):
            self.path.open("wb").close()
        while True:
            before = self.done
            try:
                return retries.call(self._attempt)
            except UnavailableError:
                if self.done <= before:
                    raise

    def _attempt(self) -> Entry:
        if self._entry and 0 < self._entry.size == self.done:
            return self._entry  # it broke off after the last byte
        with self.backend.read(self.key, self.done, self.etag) as reading:
            self._entry = reading.entry
            if reading.start != self.done:  # the server has no ranges
                self._digest, self.done = hashlib.md5(usedforsecurity=False), reading.start
            self.etag = self.etag or reading.entry.etag
            with disk_errors(self.path):
                file = self.path.open("ab", buffering=0)  # a buffer would raise again when closed
                if file.tell() > self.done:
                    file.truncate(self.done)
            with file:
                for piece in reading.pieces:
                    with disk_errors(self.path):
                        rest = memoryview(piece)
                        while rest:
                            rest = rest[file.write(rest) :]
                    self._digest.update(piece)
                    self.done += len(piece)
                    self.progress(self.done)
            if self.done < reading.entry.size:
                raise UnavailableError(self.backend.root / self.key, "broke off")
            return reading.entry


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raise OSError as OutputError with code `storage_full` or `unwritable_output`."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise OutputError(
            f"cannot write the local copy {str(path)!r}: {error.strerror or error}; free some space, or "
            "name another folder with --spool",
            code="storage_full" if full else "unwritable_output",
        ) from error


__all__ = ["Copy", "disk_errors"]
