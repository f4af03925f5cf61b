"""Which recording goes to which worker next: one list, the longest first, a few in flight per worker.

    schedule = Schedule([Work("a.mp3", weight=5e6), Work("b.mp3", weight=1e6)], in_flight=2)
    work = schedule.take("worker-1", now)          # None: nothing for this worker at the moment
    schedule.done("worker-1", work.source)
    given_up = schedule.lost("worker-2", crashed=True)

Longest first leaves only short recordings for the end (R. Graham, "Bounds on Multiprocessing Timing
Anomalies", 1969), and several in flight keep windows of different recordings in every engine. Pure: knows
names, weights and times that it is told; nothing of files, processes or clusters.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

IN_FLIGHT = 2
"""Recordings that a worker has at a time: one in the engine and one that is fetched and decoded."""

MAX_CRASHES = 3
"""Crashes over a recording before it is given up."""


@dataclass(frozen=True)
class Work:
    """A recording and its weight: bytes, or seconds of audio, but the same for all."""

    source: str
    weight: float = 0.0


@dataclass
class _Worker:
    has: dict[str, float] = field(default_factory=dict)  # source -> when it was taken
    alone: bool = False  # with a recording over which a worker has crashed


class Schedule:
    """The list and the state of all workers.

    Args:
        works: the recordings; each once.
        in_flight: recordings that a worker has at a time.
        repeat_after_s: when nothing is left, an idle worker repeats what another one has had for this
            long; the record decides whose counts. None: never.
    """

    def __init__(
        self,
        works: Iterable[Work],
        *,
        in_flight: int = IN_FLIGHT,
        repeat_after_s: float | None = None,
    ) -> None:
        self.in_flight, self.repeat_after_s = in_flight, repeat_after_s
        self.open = {work.source: work for work in works}  # without a result
        self.crashes: Counter[str] = Counter()
        self._order = {source: number for number, source in enumerate(self.open)}
        self._waiting = [(-work.weight, self._order[s], s) for s, work in self.open.items()]
        heapq.heapify(self._waiting)
        self._suspects: list[tuple[float, int, str]] = []
        self._workers: dict[str, _Worker] = {}

    @property
    def waiting(self) -> int:
        """Recordings that no worker has."""
        return len(self._waiting) + len(self._suspects)

    def holds(self, worker: str) -> tuple[str, ...]:
        """What a worker has, in the order taken."""
        return tuple(self._workers[worker].has) if worker in self._workers else ()

    def take(self, worker: str, now: float = 0.0) -> Work | None:
        """The next recording for a worker; None while it has enough, or if there is none for it.

        A recording over which a worker crashed comes after all others, and to a worker that has nothing
        else: so the one that is to blame is known, and others are not lost with it.
        """
        state = self._workers.setdefault(worker, _Worker())
        if state.alone or len(state.has) >= self.in_flight:
            return None
        if source := self._pop(self._waiting):
            return self._given(state, source, now)
        if not state.has and (source := self._pop(self._suspects)):
            state.alone = True
            return self._given(state, source, now)
        if not state.has and (source := self._straggler(now)):
            return self._given(state, source, now)
        return None

    def done(self, worker: str, source: str) -> bool:
        """A recording has ended, well or badly; False if it had ended before at another worker."""
        self._release(worker, source)
        return self.open.pop(source, None) is not None

    def returned(self, worker: str, source: str) -> None:
        """A worker gives a recording back: it goes on the list again, and nothing is held against it."""
        state = self._workers.get(worker)
        if state is None or source not in state.has:
            return
        self._release(worker, source)
        if source in self.open and not self._held_elsewhere(source):
            self._put_back(source)

    def lost(self, worker: str, *, crashed: bool) -> list[Work]:
        """A worker is gone; what it had goes back on the list. `crashed`: by itself, so that one of its
        recordings may be the cause; not by a notice, a preemption or a lost machine.

        Returns the recordings that are given up: `MAX_CRASHES` workers crashed over them. They are
        done; their records are the caller's to write.
        """
        state = self._workers.pop(worker, _Worker())
        given_up = []
        for source in state.has:
            if source not in self.open or self._held_elsewhere(source):
                continue
            self.crashes[source] += crashed
            if self.crashes[source] >= MAX_CRASHES:
                given_up.append(self.open.pop(source))
                continue
            self._put_back(source)
        return given_up

    def _put_back(self, source: str) -> None:
        entry = (-self.open[source].weight, self._order[source], source)
        heapq.heappush(self._suspects if self.crashes[source] else self._waiting, entry)

    def _given(self, state: _Worker, source: str, now: float) -> Work:
        state.has[source] = now
        return self.open[source]

    def _pop(self, heap: list[tuple[float, int, str]]) -> str | None:
        while heap:
            source = heapq.heappop(heap)[2]
            if source in self.open:
                return source
        return None

    def _straggler(self, now: float) -> str | None:
        """The recording that others have had for the longest time, if that is too long, and only once."""
        if self.repeat_after_s is None:
            return None
        taken: dict[str, list[float]] = {}
        for state in self._workers.values():
            for source, since in state.has.items():
                taken.setdefault(source, []).append(since)
        late = [
            (times[0], source)
            for source, times in taken.items()
            if source in self.open
            and len(times) == 1
            and now - times[0] >= self.repeat_after_s
            and not self.crashes[source]
        ]
        return min(late)[1] if late else None

    def _release(self, worker: str, source: str) -> None:
        state = self._workers.get(worker)
        if state is not None and state.has.pop(source, None) is not None and not state.has:
            state.alone = False

    def _held_elsewhere(self, source: str) -> bool:
        return any(source in state.has for state in self._workers.values())


__all__ = ["IN_FLIGHT", "MAX_CRASHES", "Schedule", "Work"]
