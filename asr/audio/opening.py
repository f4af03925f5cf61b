"""Opening the file of a recording, or reporting why it cannot be opened.

Importing this module is fast. Knows nothing of what is in the file.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from ..errors import AudioError

ADVICE = {
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.ELOOP: "its symbolic links lead in a circle",
}


def open_path(path: Path, name: str) -> BinaryIO:
    """Open a file or a pipe; `name` is for messages. Raises AudioError: `missing_file`,
    `unreadable_file`."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise AudioError(f"{name}: a directory; name the files in it", code="unreadable_file")
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            raise AudioError(f"{name}: neither a file nor a pipe", code="unreadable_file")
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError) as error:
        fetched = "`forescribe transcribe` and `diarize` fetch URLs; else download it first"
        hint = fetched if "://" in name else "check the path"
        raise AudioError(f"{name}: no such file; {hint}", code="missing_file") from error
    except (OSError, ValueError) as error:  # ValueError: the path contains a null byte
        raise unreadable(name, error) from error


class CallbackFile:
    """A file for a library that reads it through callbacks of C, where an exception is printed and ignored.

    Positions outside of the file, to which damaged headers lead, are moved into it. An error in reading ends
    the file; `check` raises it.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._size = file, file.seek(0, os.SEEK_END)
        self._error: OSError | None = None
        file.seek(0)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_CUR: self._file.tell(), os.SEEK_END: self._size}.get(whence, 0)
        return self._file.seek(min(max(0, base + offset), self._size))

    def tell(self) -> int:
        return self._file.tell()

    def read(self, count: int = -1) -> bytes:
        try:
            return self._file.read(count)
        except OSError as error:
            self._error = error
            return b""

    def check(self) -> None:
        """Raises the error that ended the file, if there was one."""
        if self._error is not None:
            raise self._error


def unreadable(name: str, error: OSError | ValueError) -> AudioError:
    """The error for a file that the system does not let us read, with advice for known reasons."""
    reason = getattr(error, "strerror", None) or error
    advice = ADVICE.get(getattr(error, "errno", None) or 0)
    text = f"{name}: cannot be read ({reason})" + (f"; {advice}" if advice else "")
    return AudioError(text, code="unreadable_file")


def empty(name: str) -> AudioError:
    """The error for an empty file."""
    return AudioError(f"{name}: the file is empty (0 bytes)", code="empty_file")
