"""Isolation: faults as values, so that what is one window's stays one window's.

    slots = Isolated(engine)
    slots.submit(request)              # never raises
    for ended in slots.step():         # a Result or a Fault for each request that has ended

    for one in each(work, items):      # a result or an exception for each item
        ...

The engine keeps the faults of its requests apart by itself; here they become one kind with those of
requests that it refuses. Knows nothing of audio.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.engine.faults import release
from forescribe.speculative.requests import Finish, Request, Result


@dataclass(frozen=True, eq=False)
class Fault:
    """A request that could not be decoded."""

    request: Request
    error: Exception


Ended = Result | Fault

T = TypeVar("T")
R = TypeVar("R")


def each(work: Callable[[Sequence[T]], Sequence[R]], items: Sequence[T]) -> list[R | Exception]:
    """The work for all items together or, where it fails, for each alone: a result or an exception for
    each."""
    try:
        return list(work(items))
    except Exception as error:
        if len(items) < 2:
            return [error] * len(items)
    return [one for item in items for one in each(work, [item])]


class Isolated:
    """An engine whose requests have tags of their own. Belongs to one thread, like the engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._ended: list[Ended] = []  # not yet told

    @property
    def free(self) -> int:
        """Requests that could enter with the next step."""
        return self.engine.free

    @property
    def idle(self) -> bool:
        return self.engine.idle and not self._ended

    def submit(self, request: Request) -> None:
        """Queues a request. One that the engine refuses ends as a fault in the next step."""
        try:
            self.engine.submit(request)
        except Exception as error:
            self._ended.append(Fault(request, error))

    def cancel(self, tag: Hashable) -> None:
        """Drops a request, wherever it is. Its row and its encoder states are free with the next step,
        or with `settle`."""
        self.engine.cancel(tag)
        self._ended = [ended for ended in self._ended if ended.request.tag != tag]

    def settle(self) -> None:
        """Frees at once what was cancelled; what ends meanwhile comes with the next step."""
        for _ in range(self.engine.device.rounds_per_poll + 1):
            if self.engine.idle:
                return
            self._ended = self.step()

    def step(self) -> list[Ended]:
        """What has ended by now, often nothing; nothing of what was cancelled."""
        before, self._ended = self._ended, []
        results = [r for r in self.engine.step() if r.finish is not Finish.CANCELLED]
        return [*before, *map(_told, results)]


def _told(result: Result) -> Ended:
    if result.error is None:
        return result
    cause = result.error.__cause__
    release(result.error)
    return Fault(result.request, cause if isinstance(cause, Exception) else result.error)
