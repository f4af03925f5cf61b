"""Statistics of decoding: counts, acceptance rates and seconds by stage.

Knows numbers only; the counters on the device are `rows.Counters`. Import is light.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import starmap, zip_longest
from operator import add, sub
from typing import Any


@dataclass(frozen=True)
class Stats:
    """Counts and seconds of a stretch of decoding. Two stretches can be added and subtracted.

    `acceptance_rate` is accepted / drafted; `mean_acceptance_length` is tokens per row and round,
    the target's own token included (vLLM's convention).
    """

    rounds: int = 0  # rounds of the whole batch
    row_rounds: int = 0  # rounds that rows took part in: `rounds` times the mean occupancy
    emitted: int = 0
    drafted_at_depth: tuple[int, ...] = ()
    accepted_at_depth: tuple[int, ...] = ()
    target_forwards: int = 0
    draft_forwards: int = 0
    faults: int = 0  # exceptions in models, drafters, rules and schedules, repeated ones included
    seconds: dict[str, float] = field(default_factory=dict)  # by stage; empty where not measured

    @property
    def drafted(self) -> int:
        return sum(self.drafted_at_depth)

    @property
    def accepted(self) -> int:
        return sum(self.accepted_at_depth)

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted; 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / rounds of a row; 0 where no round was run."""
        return 1 + self.accepted / self.row_rounds if self.row_rounds else 0.0

    @property
    def acceptance_at_depth(self) -> tuple[float, ...]:
        """Share of submitted drafts kept, by depth; the chain before it must have been kept too."""
        pairs = zip(self.accepted_at_depth, self.drafted_at_depth, strict=True)
        return tuple(a / d if d else 0.0 for a, d in pairs)

    def __add__(self, other: Stats) -> Stats:
        return self._merge(other, add)

    def __sub__(self, other: Stats) -> Stats:
        return self._merge(other, sub)

    def _merge(self, other: Stats, combined: Callable[[Any, Any], Any]) -> Stats:
        merged: dict[str, Any] = {}
        for name, mine in vars(self).items():
            theirs = getattr(other, name)
            if isinstance(mine, tuple):  # by depth
                pairs = zip_longest(mine, theirs, fillvalue=0)
                merged[name] = tuple(starmap(combined, pairs))
            elif isinstance(mine, dict):  # by stage
                stages = sorted(mine.keys() | theirs.keys())
                merged[name] = {s: combined(mine.get(s, 0.0), theirs.get(s, 0.0)) for s in stages}
            else:
                merged[name] = combined(mine, theirs)
        return Stats(**merged)

    def to_dict(self) -> dict[str, object]:
        """All fields and the derived rates, for JSON."""
        return vars(self) | {
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "acceptance_at_depth": self.acceptance_at_depth,
        }
