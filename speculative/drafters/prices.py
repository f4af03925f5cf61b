"""Prices: what a drafted token and a scored position cost, from the times of past rounds.

For devices that have finished when a call returns. Knows seconds; nothing of tokens.
"""

from __future__ import annotations

DECAY = 0.97
"""Weight of the earlier rounds in each new one: about thirty rounds are remembered."""

OUTLIER = 2.0
"""A round that took more than this many times the expected time was interrupted, and counts as that."""

FREE_SHARE = 0.02
"""Share of a forward that a position costs at least, so that noise never makes drafts free."""

LEAST = 1e-9
"""Seconds that everything takes, however coarse the clock is."""


class Line:
    """Seconds as a straight line over a size, by least squares over the past rounds."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self.rounds = 0

    def learn(self, size: int, seconds: float) -> None:
        if self.rounds > 3:
            seconds = min(seconds, OUTLIER * self.at(size))
        self.rounds += 1
        for name, value in (
            ("_weight", 1.0),
            ("_x", size),
            ("_y", seconds),
            ("_xx", size * size),
            ("_xy", size * seconds),
        ):
            setattr(self, name, DECAY * getattr(self, name) + value)

    @property
    def slope(self) -> float:
        """Seconds that one more costs; at least a small share of the mean."""
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - mean_x * mean_x
        least = FREE_SHARE * mean_y
        if spread < 0.1:
            return least
        slope = (self._xy / self._weight - mean_x * mean_y) / spread
        return min(max(slope, least), mean_y / max(mean_x, 1.0))

    def at(self, size: float) -> float:
        """Seconds of this size."""
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        return max(mean_y + self.slope * (size - mean_x), FREE_SHARE * mean_y, LEAST)


class Mean:
    """A running mean."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def learn(self, value: float) -> None:
        self._sum, self._weight = DECAY * self._sum + value, DECAY * self._weight + 1

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight else 0.0
