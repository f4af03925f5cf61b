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

from speculative.engine import Engine
from speculative.types import Request, Result


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
        self._refused: list[Fault] = []

    @property
    def free(self) -> int:
        """Requests that could enter with the next step."""
        return self.engine.free

    @property
    def idle(self) -> bool:
        return self.engine.idle and not self._refused

    def submit(self, request: Request) -> None:
        """Queues a request. One that the engine refuses ends as a fault in the next step."""
        try:
            self.engine.submit(request)
        except Exception as error:
            self._refused.append(Fault(request, error))

    def cancel(self, tag: Hashable) -> None:
        """Drops a request, wherever it is; its memory is free with the next step."""
        self.engine.cancel(tag)
        self._refused = [fault for fault in self._refused if fault.request.tag != tag]

    def step(self) -> list[Ended]:
        """What has ended by now, often nothing."""
        refused, self._refused = self._refused, []
        return [*refused, *map(_told, self.engine.step())]


def _told(result: Result) -> Ended:
    if result.error is None:
        return result
    cause = result.error.__cause__
    return Fault(result.request, cause if isinstance(cause, Exception) else result.error)
