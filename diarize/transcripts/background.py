"""Diarization in the background of a transcription, so that a recording is decoded only once.

    with BackgroundDiarizer(diarizer) as background:
        task = background.start()
        for block in recording.blocks():
            task.feed(block)
            ...                          # the transcriber takes the same block
        diarization = task.finish().result()

One thread diarizes one recording after the other while the caller's thread does something else.
Samples that wait for it are kept on disk: a fast transcription of ten hours needs no extra RAM.
"""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import TracebackType
from typing import BinaryIO, Self, cast

import numpy as np

from ..blocks import BLOCK, SLACK, join_blocks
from ..diarizer import Bounds, Diarization, Diarizer, Hook, Samples, ignore_progress

SAMPLE_BYTES = np.dtype(np.float32).itemsize

READ_BYTES = 1 << 30
"""Upper limit for one read; the system's own limit is 2 GB."""


class BackgroundDiarizer:
    """An engine that runs in a separate thread. Call `close` at the end, or use it in a `with` statement."""

    def __init__(
        self,
        diarizer: Diarizer,
        bounds: Bounds | None = None,
        *,
        block: int = BLOCK,
        slack: int = SLACK,
    ) -> None:
        self.diarizer, self.bounds = diarizer, bounds or Bounds()
        self.block, self.slack = block, slack
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="diarize")
        self._files: list[BinaryIO] = []

    def start(self, hook: Hook = ignore_progress) -> DiarizationTask:
        """Begin a new recording. Several may be open at a time."""
        file = cast(BinaryIO, tempfile.TemporaryFile())
        self._files = [known for known in self._files if not known.closed] + [file]
        return DiarizationTask(self, self._worker, file, hook)

    def close(self) -> None:
        """Wait for the current block and drop those that have not begun."""
        self._worker.shutdown(cancel_futures=True)
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class DiarizationTask:
    """The diarization of one recording. `feed` its samples in order, then `finish` or `cancel`."""

    def __init__(
        self,
        background: BackgroundDiarizer,
        worker: ThreadPoolExecutor,
        file: BinaryIO,
        hook: Hook,
    ) -> None:
        self.background, self.hook = background, hook
        self._worker, self._file = worker, file
        self._written = self._submitted = 0  # samples
        self._blocks: list[Future[Diarization]] = []
        self._cancelled = False

    def feed(self, samples: Samples) -> None:
        """Add the next samples [T]. A block is submitted once it is certain not to be the last."""
        if self._cancelled:
            return
        self._file.write(np.ascontiguousarray(samples, np.float32).tobytes())
        self._written += len(samples)
        while self._written - self._submitted > self.background.block + self.background.slack:
            self._submit(self.background.block, Bounds(at_most=self.background.bounds.most))

    def finish(self) -> Future[Diarization]:
        """Return the result as a future. It raises what the engine or the hook raised."""
        whole = not self._blocks
        bounds = self.background.bounds
        if whole or self._written > self._submitted:
            rest = self._written - self._submitted
            self._submit(rest, bounds if whole else Bounds(at_most=bounds.most))
        return self._worker.submit(self._join)

    def cancel(self) -> None:
        """Stop the work on this recording, because it failed elsewhere."""
        self._cancelled = True
        for block in self._blocks:
            block.cancel()
        self._worker.submit(self._file.close)  # after the block that may be reading it

    def _submit(self, length: int, bounds: Bounds) -> None:
        self._file.flush()
        start, self._submitted = self._submitted, self._submitted + length
        self._blocks.append(self._worker.submit(self._diarize, start, length, bounds))

    def _diarize(self, start: int, length: int, bounds: Bounds) -> Diarization:
        self._report("waiting", 0.0)  # raises if the task was cancelled in the meantime
        samples = _read(self._file.fileno(), start, length)
        return self.background.diarizer.diarize(samples, bounds, self._report)

    def _report(self, step: str, done: float) -> None:
        if self._cancelled:
            raise CancelledError
        self.hook(step, done)

    def _join(self) -> Diarization:
        """Runs after the blocks in the only thread, so all of them are done."""
        with self._file:
            done = [block.result(timeout=0) for block in self._blocks]
        return done[0] if len(done) == 1 else join_blocks(done, self.background.bounds)


def _read(descriptor: int, start: int, count: int) -> Samples:
    """Read by position, as the other thread may be writing at the end of the file."""
    samples = np.empty(count, np.float32)
    rest, at = samples.data.cast("B"), start * SAMPLE_BYTES
    while rest:
        size = os.preadv(descriptor, [rest[:READ_BYTES]], at)
        assert size, "the temporary file is shorter than what was written to it"
        rest, at = rest[size:], at + size
    return samples
