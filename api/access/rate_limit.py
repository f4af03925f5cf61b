"""A rate limit over a sliding window: how much was used, and when more may be used.

    limit = RateLimit(maximum=600, window_s=3600)
    wait_s = limit.wait_s(30, now)      # 0 if 30 more may be used now
    limit.add(30, now)

The window slides in sixty steps, so memory does not grow with use. Does not know keys.
"""

from __future__ import annotations

from collections import deque

STEPS = 60

ROUNDING = 1e-6


class RateLimit:
    """At most `maximum` in any `window_s` seconds, with a resolution of a sixtieth of the window."""

    def __init__(self, maximum: float, window_s: float) -> None:
        self.maximum, self.window_s = maximum, window_s
        self._steps: deque[list[float]] = deque()  # [step, amount], the oldest first
        self._used = 0.0

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until this amount may be used: 0 for now, infinite for never."""
        if amount > self.maximum:
            return float("inf")
        self._expire(now)
        excess, wait_s = self._used + amount - self.maximum, 0.0
        for step, used in self._steps:
            if excess <= ROUNDING:
                break
            excess -= used
            wait_s = (step + STEPS + 1) * self.window_s / STEPS - now
        return wait_s

    def remaining(self, now: float) -> float:
        """How much may be used now."""
        self._expire(now)
        return min(self.maximum, max(0.0, self.maximum - self._used))

    def reset_s(self, now: float) -> float:
        """Seconds until all of it may be used."""
        self._expire(now)
        if not self._steps:
            return 0.0
        return max(0.0, (self._steps[-1][0] + STEPS + 1) * self.window_s / STEPS - now)

    def take_over(self, other: RateLimit) -> None:
        """Count what was used of another limit with the same window."""
        self._steps, self._used = deque(list(step) for step in other._steps), other._used

    def add(self, amount: float, now: float) -> None:
        step = self._step(now)
        if self._steps and self._steps[-1][0] == step:
            self._steps[-1][1] += amount
        else:
            self._steps.append([step, amount])
        self._used += amount

    def _expire(self, now: float) -> None:
        while self._steps and self._steps[0][0] + STEPS < self._step(now):
            self._used -= self._steps.popleft()[1]
        if not self._steps:
            self._used = 0.0  # removes rounding errors

    def _step(self, now: float) -> float:
        return now * STEPS // self.window_s
