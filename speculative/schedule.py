"""Draft length. A round has one static gamma, chosen from a few buckets so that few graphs exist."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fixed:
    """The same gamma in every round; 0 is plain decoding."""

    gamma: int

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise ValueError(f"gamma is {self.gamma}; it must be 0 or more")

    @property
    def buckets(self) -> tuple[int, ...]:
        return (self.gamma,)

    def choose(self, active: int) -> int:
        return self.gamma

    def learn(self, gamma: int, drafted: int, accepted: int, seconds: float) -> None:
        """A fixed length learns nothing."""
