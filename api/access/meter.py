"""Meter: how much a key has had in the last minute or hour, and when there is more.

    meter = Meter(most=600, window_s=3600)
    wait_s = meter.wait_s(30, now)      # 0 where 30 more may be had
    meter.add(30, now)

A window slides in sixty steps, so a meter is small whatever it counts. Knows nothing of keys.
"""

from __future__ import annotations

from collections import deque

STEPS = 60

ROUNDING = 1e-6


class Meter:
    """At most `most` in any `window_s` seconds, to a sixtieth of it."""

    def __init__(self, most: float, window_s: float) -> None:
        self.most, self.window_s = most, window_s
        self._steps: deque[list[float]] = deque()  # [step, amount], the oldest first
        self._had = 0.0

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until so much more may be had; 0 is now. Infinite where it never may."""
        if amount > self.most:
            return float("inf")
        self._forget(now)
        over, wait_s = self._had + amount - self.most, 0.0
        for step, held in self._steps:
            if over <= ROUNDING:
                break
            over -= held
            wait_s = (step + STEPS + 1) * self.window_s / STEPS - now
        return wait_s

    def add(self, amount: float, now: float) -> None:
        step = self._step(now)
        if self._steps and self._steps[-1][0] == step:
            self._steps[-1][1] += amount
        else:
            self._steps.append([step, amount])
        self._had += amount

    def _forget(self, now: float) -> None:
        while self._steps and self._steps[0][0] + STEPS < self._step(now):
            self._had -= self._steps.popleft()[1]
        if not self._steps:
            self._had = 0.0  # what rounding left

    def _step(self, now: float) -> float:
        return now * STEPS // self.window_s
