"""Opening: the file of a recording, or the reason why there is none.

Import is light; knows nothing of what is in the file.
"""

from __future__ import annotations

import errno
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
    """A file or a pipe. `name` is for messages. Raises AudioError: `missing_file`, `unreadable_file`."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise AudioError(f"{name}: a directory; name the files in it", code="unreadable_file")
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            raise AudioError(f"{name}: neither a file nor a pipe", code="unreadable_file")
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError) as error:
        hint = "links are not fetched; download it first" if "://" in name else "check the path"
        raise AudioError(f"{name}: no such file; {hint}", code="missing_file") from error
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise unreadable(name, error) from error


def unreadable(name: str, error: OSError | ValueError) -> AudioError:
    """For what the system does not let us read, with advice where there is some."""
    reason = getattr(error, "strerror", None) or error
    advice = ADVICE.get(getattr(error, "errno", None) or 0)
    text = f"{name}: cannot be read ({reason})" + (f"; {advice}" if advice else "")
    return AudioError(text, code="unreadable_file")


def empty(name: str) -> AudioError:
    """For a file without a byte."""
    return AudioError(f"{name}: the file is empty (0 bytes)", code="empty_file")
