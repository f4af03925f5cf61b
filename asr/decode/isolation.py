"""Isolation: exceptions as values, so that a fault in one window does not affect another one.

    slots = IsolatedEngine(engine)
    slots.submit(request)                           # never raises
    for ended in slots.ended(engine.step()):        # a Result or a Fault for each request that ended
        ...
    for result in apply_each(work, items):          # a result or an exception for each item
        ...

The engine itself contains the faults of its requests; here they become one type with those of requests
that it rejects. Knows nothing of audio.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from forescribe.speculative.engine.context import release
from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.requests import Finish, Request, Result


@dataclass(frozen=True, eq=False)
class Fault:
    """A request that could not be decoded."""

    request: Request
    error: Exception


Ended = Result | Fault

T = TypeVar("T")
R = TypeVar("R")


def apply_each(
    work: Callable[[Sequence[T]], Sequence[R]], items: Sequence[T]
) -> list[R | Exception]:
    """Apply `work` to all items together or, where that fails, to each alone.

    Returns a result or an exception for each item.
    """
    try:
        return list(work(items))
    except Exception as error:
        if len(items) < 2:
            return [error] * len(items)
    return [result for item in items for result in apply_each(work, [item])]


class IsolatedEngine:
    """An engine whose requests have unique tags. Belongs to one thread, like the engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._ended: list[Ended] = []  # not returned yet

    @property
    def free(self) -> int:
        """Requests that could enter with the next step."""
        return self.engine.free

    @property
    def idle(self) -> bool:
        """Whether nothing is decoded or waits to be returned."""
        return self.engine.idle and not self._ended

    def submit(self, request: Request) -> None:
        """Queue a request. One that the engine rejects ends as a fault with the next step."""
        try:
            self.engine.submit(request)
        except Exception as error:
            self._ended.append(Fault(request, error))

    def cancel(self, tag: Hashable) -> None:
        """Drop a request, wherever it is. Its row and its encoder states are free with the next step,
        or with `settle`."""
        self.engine.cancel(tag)
        self._ended = [ended for ended in self._ended if ended.request.tag != tag]

    def advance(self) -> bool:
        """Runs a step while something else is awaited; what ends is returned with the next step. False
        where nothing is decoded."""
        if self.engine.idle:
            return False
        self._ended = self.ended(self.engine.step())
        return True

    def settle(self) -> None:
        """Free at once what was cancelled; what ends meanwhile is returned with the next step."""
        for _ in range(self.engine.device.rounds_per_poll + 1):
            if self.engine.idle:
                return
            self._ended = self.ended(self.engine.step())

    def ended(self, results: Iterable[Result]) -> list[Ended]:
        """What has ended by now, from the results of the engine's step; nothing that was cancelled."""
        before, self._ended = self._ended, []
        return [*before, *(_as_ended(r) for r in results if r.finish is not Finish.CANCELLED)]


def _as_ended(result: Result) -> Ended:
    if result.error is None:
        return result
    cause = result.error.__cause__
    release(result.error)
    return Fault(result.request, cause if isinstance(cause, Exception) else result.error)
