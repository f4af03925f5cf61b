"""Which recordings go to which worker next: in their order, so that rows are full and nobody hoards.

    dispatch = Dispatch({"a.mp3": 3600.0, "b.mp3": None}, workers=2, batch=8)
    paths = dispatch.assign(worker)              # more work for a worker, often none
    dispatch.finished(worker, "a.mp3")
    given_up = dispatch.lost(worker, crashed=True)

A worker holds windows for three batches, so that its rows never wait for the driver, and one recording
ahead, which is read while the one before it ends; but never more than its share of what is left, or the
last recordings would wait behind one worker while others are idle. The longest recordings are expected
first, which leaves only short ones for the end (R. Graham, "Bounds on Multiprocessing Timing Anomalies",
1969). A recording over which a worker crashed comes after all others, to a worker that has nothing else: so
the one that is to blame is known, and others are not lost with it. A state machine without clocks, threads
or Ray.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping

from forescribe.asr.errors import AudioError
from forescribe.asr.records.record_store import MAX_CRASHES

WINDOW_S = 25.0
"""Seconds of audio in a window on average; they end in pauses, after at most 30 s."""

UNKNOWN_WINDOWS = 4
"""Windows of a recording of unknown length."""


class Dispatch:
    """The recordings of a run, on workers that are known by their numbers.

    `lengths` are those of the recordings in seconds, in the order of the work; None where one is unknown.
    `batch` is the number of rows of a worker; with `sequential`, a recording has one window at a time.
    `crashes` are those that earlier runs have seen over them.
    """

    def __init__(
        self,
        lengths: Mapping[str, float | None],
        *,
        workers: int,
        batch: int,
        sequential: bool = False,
        crashes: Mapping[str, int] | None = None,
    ) -> None:
        self.workers, self.crashes = workers, Counter(crashes or {})
        self._most = batch + 1 if sequential else 3 * batch  # windows that a worker should hold
        self._windows = {
            path: 1 if sequential else _windows(length) for path, length in lengths.items()
        }
        self._left = sum(self._windows.values())  # of recordings that have not ended
        self._order = {path: number for number, path in enumerate(lengths)}
        self._open = set(lengths)
        self._held: dict[int, list[str]] = {}  # by worker
        self._alone: set[int] = set()  # workers that have a suspect
        self._waiting: list[tuple[int, str]] = []  # heaps
        self._suspects: list[tuple[int, str]] = []
        for path in lengths:
            self._put_back(path)

    @property
    def total(self) -> int:
        """All recordings of the run."""
        return len(self._windows)

    @property
    def open(self) -> bool:
        """Whether a recording has not ended."""
        return bool(self._open)

    @property
    def waiting(self) -> bool:
        """Whether there is a recording that no worker holds."""
        return bool(self._waiting or self._suspects)

    def held(self, worker: int) -> tuple[str, ...]:
        """What a worker has, in the order given."""
        return tuple(self._held.get(worker, ()))

    def assign(self, worker: int) -> list[str]:
        """More recordings for a worker, as many as it should hold."""
        held, given = self._held.setdefault(worker, []), list[str]()
        while worker not in self._alone and self._has_room(held):
            if self._waiting:
                _, path = heapq.heappop(self._waiting)
            elif self._suspects and not held:
                _, path = heapq.heappop(self._suspects)
                self._alone.add(worker)
            else:
                break
            held.append(path)
            given.append(path)
        return given

    def finished(self, worker: int, path: str) -> bool:
        """A recording has ended. False where it had ended before."""
        self._release(worker, path)
        return self._end(path)

    def returned(self, worker: int, path: str) -> None:
        """A worker gives a recording back: nothing is held against it."""
        if path in self._held.get(worker, ()):
            self._release(worker, path)
            self._put_back(path)

    def lost(self, worker: int, *, crashed: bool) -> list[str]:
        """A worker is gone; others get what it had. `crashed`: by itself, so that one of its recordings may
        be the cause; not by a notice, a preemption or a lost machine.

        Returns the recordings over which `MAX_CRASHES` workers have crashed now; they have ended.
        """
        self._alone.discard(worker)
        given_up = []
        for path in self._held.pop(worker, []):
            self.crashes[path] += crashed
            if self.crashes[path] >= MAX_CRASHES:
                self._end(path)
                given_up.append(path)
            else:
                self._put_back(path)
        return given_up

    def _put_back(self, path: str) -> None:
        heap = self._suspects if self.crashes[path] else self._waiting
        heapq.heappush(heap, (self._order[path], path))

    def _release(self, worker: int, path: str) -> None:
        held = self._held.get(worker, [])
        if path in held:
            held.remove(path)
        if not held:
            self._alone.discard(worker)

    def _end(self, path: str) -> bool:
        first = path in self._open
        self._open.discard(path)
        self._left -= self._windows[path] if first else 0
        return first

    def _has_room(self, held: list[str]) -> bool:
        if not held:
            return True
        share = math.ceil(self._left / self.workers)
        if sum(self._windows[path] for path in held) < min(self._most, share):
            return True
        return len(held) < 2 and len(self._waiting) + len(self._suspects) >= self.workers


def _windows(length_s: float | None) -> int:
    return UNKNOWN_WINDOWS if length_s is None else max(1, math.ceil(length_s / WINDOW_S))


def crash_error(path: str) -> AudioError:
    """The error of a recording that is given up."""
    return AudioError(
        f"{path}: {MAX_CRASHES} workers died while they had it, the last ones nothing else; "
        "it may be damaged or hostile, or too large for their memory",
        code="crashed_workers",
    )
