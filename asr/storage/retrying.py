"""Attempts: a request to a store is repeated while its failure is temporary, ever later, a bounded time.

Waiting times are exponential with full jitter, random between 0 and a bound that doubles, so that workers
that were throttled together do not return together (M. Brooker, "Exponential Backoff and
Jitter", AWS Architecture Blog, 2015). Knows errors and clocks; nothing of stores.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from .storage_errors import LocatedError

T = TypeVar("T")


@dataclass(frozen=True)
class Retries:
    """When to try again: `attempts` in all, at most `longest_s` apart, none begun after `total_s`.

    `told` is called before the first pause of a request, with the error and the seconds that all of its
    pauses may take. `sleep`, `clock` and `draw`, a random number in [0, 1), are arguments for tests."""

    attempts: int = 8
    first_s: float = 0.25
    longest_s: float = 20.0
    total_s: float = 180.0
    sleep: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic
    draw: Callable[[], float] = field(default=random.random)
    told: Callable[[LocatedError, float], object] = lambda error, seconds: None

    @property
    def patience_s(self) -> float:
        """The seconds that the pauses of a request take at most."""
        pauses = (min(self.longest_s, self.first_s * 2.0**n) for n in range(1, self.attempts))
        return min(self.total_s, sum(pauses))

    def call(self, request: Callable[[], T]) -> T:
        """Return what `request` returns. Raises its error if that is not temporary, or the last one, with
        the number of attempts."""
        started, attempt = self.clock(), 1
        while True:
            try:
                return request()
            except LocatedError as error:
                pause = self.draw() * min(self.longest_s, self.first_s * 2**attempt)
                late = self.clock() - started + pause > self.total_s
                if not error.temporary:
                    raise
                if attempt >= self.attempts or late:
                    text = f"{error.reason} ({attempt} attempts)"
                    raise type(error)(error.location, text, code=error.code) from error
                if attempt == 1:
                    self.told(error, self.patience_s)
            self.sleep(pause)
            attempt += 1


NO_RETRIES = Retries(attempts=1)


def telling(say: Callable[[str], None]) -> Retries:
    """The usual attempts, which say that they go on: once for each server."""
    known: set[str] = set()

    def told(error: LocatedError, seconds: float) -> None:
        server = f"{error.location.scheme}://{error.location.host}"
        if server not in known:
            known.add(server)
            say(f"{error}: trying again for up to {seconds:.0f} s")

    return Retries(told=told)


__all__ = ["NO_RETRIES", "Retries", "telling"]
