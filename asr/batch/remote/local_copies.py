"""Local copies of fetched recordings, and the folder that they are in.

    copy = LocalCopy("s3://calls/a.mp3", Path("/var/tmp/forescribe-spool-x/0"), content, entry)
    str(copy), os.fspath(copy)       # the name of the recording, the file to open

A folder that a killed process left behind is removed by the next one in the same place: the lock that it
held has gone with it. Knows files; nothing of stores.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...errors import OutputError
from ...storage.backends import Entry

PREFIX = "forescribe-spool-"

LOCK = "lock"


@dataclass(frozen=True)
class LocalCopy(os.PathLike[str]):
    """A recording on this machine: its name by `str`, its file by `os.fspath`."""

    name: str
    path: Path
    content: str
    """The hash of its bytes."""
    entry: Entry

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return self.name


class SpoolFolder:
    """A folder of one process, below `place`; removed by `close`. Raises OutputError."""

    def __init__(self, place: str | None = None) -> None:
        top = Path(place) if place is not None else default_place()
        try:
            top.mkdir(parents=True, exist_ok=True)
            _sweep(top)
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=top))
            # Also at the end of a process that does not come to `close`.
            self._remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
            self._lock = (self.path / LOCK).open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            raise OutputError(
                f"cannot write to the spool {str(top)!r}: {error.strerror or error}; name another folder "
                "with --spool"
            ) from error

    @property
    def free(self) -> int:
        """Free bytes on its disk."""
        return shutil.disk_usage(self.path).free

    def close(self) -> None:
        self._remove()
        self._lock.close()


def default_place() -> Path:
    """The folder for large temporary files: /tmp is memory on many machines."""
    for name in (os.environ.get("TMPDIR"), "/var/tmp"):
        if name and os.access(name, os.W_OK | os.X_OK):
            return Path(name)
    return Path(tempfile.gettempdir())


def _sweep(top: Path) -> None:
    for folder in top.glob(f"{PREFIX}*"):
        with suppress(OSError), (folder / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


__all__ = ["LocalCopy", "SpoolFolder", "default_place"]
