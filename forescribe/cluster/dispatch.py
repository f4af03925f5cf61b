"""How much each worker gets of the schedule, so that its rows are full and nobody hoards.

    dispatch = Dispatch({"a.mp3": 3600.0, "b.mp3": None}, workers=2, batch=8)
    paths = dispatch.assign(worker)              # more work for a worker, often none

A worker holds windows for three batches, so that its rows never wait for the driver, and one recording
ahead, which is read while the one before it ends; but never more than its share of what is left, or the
last recordings would wait behind one worker while others are idle. Which recordings these are, and what
becomes of those whose worker dies, is decided by `asr.batch.work_schedule`. A state machine without
clocks, threads or Ray.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from forescribe.asr.batch.work_schedule import Schedule, Work

WINDOW_S = 25.0
"""Seconds of audio in a window on average; they end in pauses, after at most 30 s."""

UNKNOWN_WINDOWS = 4
"""Windows of a recording of unknown length."""


class Dispatch:
    """The recordings of a run, on workers that are known by their numbers.

    `lengths` are those of the recordings in seconds, in the order of the work; None where one is unknown.
    `batch` is the number of rows of a worker; with `sequential`, a recording has one window at a time.
    """

    def __init__(
        self,
        lengths: Mapping[str, float | None],
        *,
        workers: int,
        batch: int,
        sequential: bool = False,
    ) -> None:
        self.workers = workers
        self._most = batch + 1 if sequential else 3 * batch  # windows that a worker should hold
        self._windows = {
            path: 1 if sequential else _windows(length) for path, length in lengths.items()
        }
        self._left = sum(self._windows.values())  # of recordings that have not ended
        # Capacity is counted in windows here, not in recordings.
        self._schedule = Schedule(map(Work, lengths), in_flight=len(lengths) + 1)

    @property
    def total(self) -> int:
        """All recordings of the run."""
        return len(self._windows)

    @property
    def open(self) -> bool:
        """Whether a recording has not ended."""
        return bool(self._schedule.open)

    @property
    def waiting(self) -> bool:
        """Whether there is a recording that no worker holds."""
        return self._schedule.waiting > 0

    def holds(self, worker: int) -> bool:
        """Whether a worker holds a recording."""
        return bool(self._schedule.holds(str(worker)))

    def assign(self, worker: int) -> list[str]:
        """More recordings for a worker, as many as it should hold."""
        given: list[str] = []
        while self._has_room(worker) and (work := self._schedule.take(str(worker))):
            given.append(work.source)
        return given

    def finished(self, worker: int, path: str) -> bool:
        """A recording has ended. False where another worker has ended it before."""
        first = self._schedule.done(str(worker), path)
        self._left -= self._windows[path] if first else 0
        return first

    def returned(self, worker: int, path: str) -> None:
        """A worker gives a recording back."""
        self._schedule.returned(str(worker), path)

    def lost(self, worker: int, *, crashed: bool) -> list[str]:
        """A worker is gone. Returns the recordings that have now cost too many workers; they have ended."""
        ended = [work.source for work in self._schedule.lost(str(worker), crashed=crashed)]
        self._left -= sum(self._windows[path] for path in ended)
        return ended

    def _has_room(self, worker: int) -> bool:
        held = self._schedule.holds(str(worker))
        if not held:
            return True
        share = math.ceil(self._left / self.workers)
        if sum(self._windows[path] for path in held) < min(self._most, share):
            return True
        return len(held) < 2 and self._schedule.waiting >= self.workers


def _windows(length_s: float | None) -> int:
    return UNKNOWN_WINDOWS if length_s is None else max(1, math.ceil(length_s / WINDOW_S))
