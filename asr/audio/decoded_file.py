"""The decoded samples of a recording on disk, mono float32 at 16 kHz, in a file without a name.

    with open_audio(spool) as recording: ...

What was decoded once, in a process of its own (`asr.audio.sandbox`), is read from here without decoding: by
position, so several may read at a time. 64 kB for a second of audio.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from ..formats.transcript import SAMPLE_RATE, Notice, seconds
from .containers import Pcm

WIDTH = np.dtype(np.float32).itemsize

PIECE = 1 << 16
"""Samples of one read."""


@dataclass(frozen=True, eq=False)
class DecodedFile:
    """As a source as good as the recording's own file. To be closed, by whoever decoded it.

    `notices` are what was wrong with the recording.
    """

    name: str
    file: BinaryIO
    sample_count: int
    notices: tuple[Notice, ...] = ()

    @property
    def duration_s(self) -> float:
        return seconds(self.sample_count)

    def reader(self) -> DecodedFileReader:
        return DecodedFileReader(self)

    def close(self) -> None:
        self.file.close()


class DecodedFileReader:
    """A spool as a container of one channel."""

    declared_s: float | None = None  # what was missing is among the notices already

    def __init__(self, spool: DecodedFile) -> None:
        self.spool, self.notices = spool, list(spool.notices)

    def read(self) -> Iterator[Pcm]:
        for start in range(0, self.spool.sample_count, PIECE):
            count = min(PIECE, self.spool.sample_count - start)
            data = os.pread(self.spool.file.fileno(), count * WIDTH, start * WIDTH)
            yield Pcm(np.frombuffer(data, np.float32)[:, None], SAMPLE_RATE)

    def close(self) -> None:
        """The spool stays."""
