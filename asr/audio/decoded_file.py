"""The decoded samples of a recording on disk, mono float32 at 16 kHz, in a file without a name.

    with open_audio(decoded) as recording: ...

What a child process has decoded (`asr.audio.sandbox`) is read from here without decoding it again: by
position, so that several readers may read at a time. 64 kB per second of audio.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from ..formats.transcript import SAMPLE_RATE, Notice, seconds
from ..segment.windows import WindowSpan
from .containers import Pcm

Spans = tuple[WindowSpan, ...]
"""Windows in order."""

WIDTH = np.dtype(np.float32).itemsize

READ_SAMPLES = 1 << 16
"""Samples of one read."""


@dataclass(frozen=True, eq=False)
class DecodedFile:
    """A decoded recording; a source like the recording's own file. The caller of the decoder closes it.

    `notices` say what was wrong with the recording. `spans` are its windows, where the child cut it as well.
    """

    name: str
    file: BinaryIO
    sample_count: int
    notices: tuple[Notice, ...] = ()
    spans: Spans | None = None

    @property
    def duration_s(self) -> float:
        return seconds(self.sample_count)

    def reader(self) -> DecodedFileReader:
        return DecodedFileReader(self)

    def close(self) -> None:
        self.file.close()


class DecodedFileReader:
    """The `Reader` of a decoded file: a container of one channel."""

    declared_s: float | None = None  # the notices already say what was missing

    def __init__(self, decoded: DecodedFile) -> None:
        self.decoded, self.notices = decoded, decoded.notices
        self.spans = decoded.spans

    def read(self) -> Iterator[Pcm]:
        for start in range(0, self.decoded.sample_count, READ_SAMPLES):
            count = min(READ_SAMPLES, self.decoded.sample_count - start)
            data = os.pread(self.decoded.file.fileno(), count * WIDTH, start * WIDTH)
            yield Pcm(np.frombuffer(data, np.float32)[:, None], SAMPLE_RATE)

    def close(self) -> None:
        """Nothing to close: the decoded file stays open."""
