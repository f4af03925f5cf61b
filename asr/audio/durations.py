"""How long a recording is, by its header: for the order of work and a bar's length, no more.

Nothing is decoded: a header costs milliseconds. A wrong answer costs a little speed, never a word.
"""

from __future__ import annotations

import os
import stat

from ..batch.inputs import Source
from ..errors import ForescribeError
from .containers import open_container

BYTES_PER_S = 16_000
"""128 kbit/s, for files whose header says nothing."""


def length_s(source: Source) -> float:
    """Seconds: a list's word, the header's, or a guess by the size; 0 where nothing is known, as
    of a pipe. Never raises for a bad file."""
    if source.length_s is not None:
        return source.length_s
    try:
        entry = os.stat(source.path)
        if not stat.S_ISREG(entry.st_mode) or not entry.st_size:
            return 0.0
        return _declared_s(source.path) or entry.st_size / BYTES_PER_S
    except (OSError, ValueError):
        return 0.0


def _declared_s(path: str) -> float | None:
    try:
        with open(path, "rb") as file:
            reader = open_container(file, path)
            try:
                return reader.declared_s
            finally:
                reader.close()
    except (ForescribeError, OSError, RuntimeError):  # it will fail with its reason when it is read
        return None
