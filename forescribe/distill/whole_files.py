"""Files that appear whole or not at all, and what is said where a disk refuses them.

Knows bytes and the system's errors.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forescribe.asr.errors import OutputError

PART = ".part"
"""What a file's name ends with while it is written."""


def put_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: whoever is killed meanwhile leaves the old one. Raises
    OutputError."""
    temporary = path.with_name(path.name + PART)
    with writing(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises OSError as OutputError that names the path and the remedy."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "make room and run the same command again" if full else "name another folder: -o"
        raise OutputError(
            f"cannot write {str(path)!r}: {error.strerror or error}; {advice}",
            code="storage_full" if full else "unwritable_output",
        ) from error
