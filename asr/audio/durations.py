"""Durations of recordings from their headers, for scheduling and progress bars.

Nothing is decoded: reading a header takes milliseconds. A wrong duration costs some speed, but no words.
Knows nothing of samples.
"""

from __future__ import annotations

import os
import stat

from ..errors import ForescribeError
from ..records.recording_sources import Source
from .containers import open_container

BYTES_PER_S = 16_000
"""128 kbit/s, for files whose header gives no duration."""


def length_s(source: Source) -> float:
    """The duration in seconds: from the list of inputs, or `length_of` its file; estimated from the size of a
    recording that is to be fetched."""
    if source.length_s is not None:
        return source.length_s
    if source.location is not None:
        return source.entry.size / BYTES_PER_S if source.entry is not None else 0.0
    return length_of(source.path)


def length_of(path: str) -> float:
    """The duration of a file in seconds: from its header, or estimated from its size; 0 where nothing is
    known, as for a pipe. Does not raise for a bad file."""
    try:
        entry = os.stat(path)
        if not stat.S_ISREG(entry.st_mode) or not entry.st_size:
            return 0.0
        return _declared_s(path) or entry.st_size / BYTES_PER_S
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
    except (ForescribeError, OSError):  # reading the file will report the error
        return None
