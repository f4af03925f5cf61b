"""Diarization beside a transcription: the recording is decoded once, and heard by both.

    beside = Beside(diarizer)
    listening = beside.listen()
    for block in recording.blocks():
        listening.hear(block)
        ...                          # whoever transcribes takes the same block
    diarization = listening.finish().result()

One thread works, one recording after the other, while the caller's thread does something else. What
waits for it is on disk, so that a fast transcription of ten hours fills no memory.
"""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import TracebackType
from typing import BinaryIO, Self, cast

import numpy as np

from ..blocks import BLOCK, SLACK, linked
from ..diarizer import Bounds, Diarization, Diarizer, Hook, Samples, unheard

WIDTH = np.dtype(np.float32).itemsize

MOST_BYTES = 1 << 30
"""Of one read: the system's own limit is 2 GB."""


class Beside:
    """An engine with a thread of its own; to be closed, or used with `with`."""

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
        self._spools: list[BinaryIO] = []

    def listen(self, hook: Hook = unheard) -> Listening:
        """A new recording; several may be open at a time."""
        spool = cast(BinaryIO, tempfile.TemporaryFile())
        self._spools = [known for known in self._spools if not known.closed] + [spool]
        return Listening(self, self._worker, spool, hook)

    def close(self) -> None:
        """Waits for the block at hand; what has not begun is dropped."""
        self._worker.shutdown(cancel_futures=True)
        for spool in self._spools:
            spool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Listening:
    """One recording on its way. `hear` its samples in order, then `finish`, or `drop` it."""

    def __init__(
        self, beside: Beside, worker: ThreadPoolExecutor, spool: BinaryIO, hook: Hook
    ) -> None:
        self.beside, self.hook = beside, hook
        self._worker, self._spool = worker, spool
        self._heard = self._taken = 0
        self._blocks: list[Future[Diarization]] = []
        self._dropped = False

    def hear(self, samples: Samples) -> None:
        """The next samples [T]. A block begins to be worked on as soon as it is certain that it is
        not the last."""
        if self._dropped:
            return
        self._spool.write(np.ascontiguousarray(samples, np.float32).tobytes())
        self._heard += len(samples)
        while self._heard - self._taken > self.beside.block + self.beside.slack:
            self._submit(self.beside.block, Bounds(at_most=self.beside.bounds.most))

    def finish(self) -> Future[Diarization]:
        """The answer, when it is there; its error is what the engine or the hook raised."""
        alone = not self._blocks
        own = self.beside.bounds if alone else Bounds(at_most=self.beside.bounds.most)
        if alone or self._heard > self._taken:
            self._submit(self._heard - self._taken, own)
        return self._worker.submit(self._together)

    def drop(self) -> None:
        """The recording failed elsewhere: what it waits for is not worked on any more."""
        self._dropped = True
        for block in self._blocks:
            block.cancel()
        self._worker.submit(self._spool.close)  # behind the block that may be reading it

    def _submit(self, length: int, bounds: Bounds) -> None:
        self._spool.flush()
        start, self._taken = self._taken, self._taken + length
        self._blocks.append(self._worker.submit(self._diarize, start, length, bounds))

    def _diarize(self, start: int, length: int, bounds: Bounds) -> Diarization:
        self._report("waiting", 0.0)  # it may have been dropped meanwhile
        samples = _read(self._spool.fileno(), start, length)
        return self.beside.diarizer.diarize(samples, bounds, self._report)

    def _report(self, step: str, done: float) -> None:
        if self._dropped:
            raise CancelledError
        self.hook(step, done)

    def _together(self) -> Diarization:
        """Runs behind the blocks in the one thread, so that all of them are done."""
        with self._spool:
            found = [block.result(timeout=0) for block in self._blocks]
        return found[0] if len(found) == 1 else linked(found, self.beside.bounds)


def _read(descriptor: int, start: int, count: int) -> Samples:
    """By position: the other thread may be writing at the end meanwhile."""
    samples = np.empty(count, np.float32)
    rest, at = samples.data.cast("B"), start * WIDTH
    while rest:
        size = os.preadv(descriptor, [rest[:MOST_BYTES]], at)
        assert size, "the spool is shorter than what was heard"
        rest, at = rest[size:], at + size
    return samples
