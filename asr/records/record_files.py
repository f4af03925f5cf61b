"""Small files by name: below a folder, and what else an output is written to.

    files = FolderFiles(Path("out"))
    files.create("_forescribe/run.json", b"...")     # False: it exists already
    files.put("a.srt", b"...")

A folder may be on a file system that several machines share: a file is created by a hard link, which fails if
the name exists, on NFS too, and needs no locks. `asr.storage.stores.Store` is the same for object storage.
"""

from __future__ import annotations

import errno
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from ..errors import OutputError, output_errors
from ..formats.files import TEMPORARY, put
from ..storage.locations import Entry


class RecordFiles(Protocol):
    """Small files by name, such as `asr.storage.stores.Store` has them."""

    def list(self, prefix: str = "") -> list[Entry]: ...

    def read(self, key: str) -> bytes:
        """Raises FileNotFoundError or MissingError; OutputError or LocatedError for other reasons."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Write a file if there is none; False if there is one. Never visible in part."""
        ...

    def put(self, key: str, data: bytes) -> object:
        """Write a file, replacing another one at once."""
        ...


class FolderFiles:
    """Files below a folder. Raises OutputError for what cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list(self, prefix: str = "") -> list[Entry]:
        found = []
        for place, _, names in os.walk(self.folder / prefix):
            for name in names:
                path = Path(place, name)
                with suppress(FileNotFoundError):  # a temporary file that has gone
                    found.append(
                        Entry(path.relative_to(self.folder).as_posix(), path.stat().st_size)
                    )
        return sorted(found, key=lambda entry: entry.key)

    def read(self, key: str) -> bytes:
        path = self.folder / key
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise
        except NotADirectoryError as error:  # the folder is a file
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path)) from error
        except OSError as error:
            raise OutputError(
                f"cannot read {str(path)!r}: {error.strerror or error}; check its permissions, or name "
                "another folder"
            ) from error

    def create(self, key: str, data: bytes) -> bool:
        path = self.folder / key
        with output_errors(repr(str(path))), _temporary(path, data) as made:
            try:
                os.link(made, path)
            except OSError as error:
                # Over NFS the reply to a link that was made may be lost, and the repetition refused.
                if os.stat(made).st_nlink == 2:
                    return True
                if isinstance(error, FileExistsError):
                    return False
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                    raise
                return _exclusive(path, data)  # a file system without links
        return True

    def put(self, key: str, data: bytes) -> None:
        path = self.folder / key
        with output_errors(f"{path.stem!r} to {str(path.parent)!r}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            put(path, data)


class Stdout:
    """Text, printed in UTF-8 as in files, whatever the locale is."""

    def put(self, key: str, data: bytes) -> None:
        """Raises OutputError, and BrokenPipeError if the reader has closed it: no error of ours."""
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"cannot write to stdout: {error.strerror}") from error


@contextmanager
def _temporary(path: Path, data: bytes) -> Iterator[Path]:
    """A file beside `path`, on the disk with its content; removed at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(TEMPORARY.format(secrets.token_hex(8)))
    try:
        with made.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield made
    finally:
        with suppress(OSError):
            made.unlink(missing_ok=True)


def _exclusive(path: Path, data: bytes) -> bool:
    """Create a file by its name alone: a reader may see a part of it, which counts as no record."""
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    return True
