"""Held-out rows through the engine as it is served: acceptance by depth, times of rounds, equality.

Knows pairs, rows and schedules; nothing of training.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forescribe.speculative.drafters.draft_tokens import DraftTokens
from forescribe.speculative.errors import SpeculativeError
from forescribe.speculative.protocols import Poll
from forescribe.speculative.stats import Stats

from ..labels.label_rows import LabelRow
from ..pairs.draft_pair import DraftPair
from .draft_selection import GAMMAS, Prices

TIMED_ROWS = 6
"""Rows that prices are measured on: some hundreds of rounds."""

PRICE_TURNS = 2


@dataclass
class Metered:
    """A fixed draft length, like `Fixed`, that notes the seconds of each round."""

    gamma: int
    judged: int = 0
    accepted: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def buckets(self) -> tuple[int, ...]:
        return (self.gamma,)

    def choose(self, *, sampling: bool) -> int:
        return self.gamma

    def learn(self, poll: Poll) -> None:
        self.judged += poll.judged
        self.accepted += poll.accepted
        self.seconds.append(poll.seconds / poll.rounds)


@dataclass(frozen=True)
class EngineRun:
    """What the engine wrote for some rows; `alpha` is the probability that a draft is accepted, given that
    those before it were."""

    tokens: tuple[tuple[int, ...], ...]
    stats: Stats
    alpha: float
    round_s: (
        float  # of the fastest tenth of the rounds: others wait for cores that the machine shares
    )
    wall_s: float


def run_rows(
    pair: DraftPair,
    draft: Path | None,
    rows: Sequence[LabelRow],
    gamma: int,
    batch: int,
    listed: DraftTokens | None = None,
) -> EngineRun:
    """Decode rows again with a draft of a folder. Raises SpeculativeError where one fails."""
    schedule = Metered(gamma)
    engine = pair.engine(draft if gamma else None, schedule, batch, listed)
    requests = (pair.request(row, number) for number, row in enumerate(rows))
    began = time.perf_counter()
    results = sorted(engine.run(requests), key=lambda r: int(r.request.tag))
    wall_s = time.perf_counter() - began
    for result in results:
        if result.error is not None or result.draft_error is not None:
            raise result.error or result.draft_error or SpeculativeError("a row failed")
    return EngineRun(
        tuple(result.tokens for result in results),
        engine.stats,
        schedule.accepted / schedule.judged if schedule.judged else 0.0,
        _low(schedule.seconds),
        wall_s,
    )


def _low(seconds: Sequence[float]) -> float:
    """The end of the fastest tenth; 0 without rounds."""
    return sorted(seconds)[len(seconds) // 10] if seconds else 0.0


def measured_prices(
    pair: DraftPair,
    draft: Path,
    rows: Sequence[LabelRow],
    batch: int,
    listed: DraftTokens | None = None,
    gammas: Sequence[int] = GAMMAS,
) -> Prices:
    """Times of a round at each draft length, on a few greedy rows where there are any; with the head cut to
    `listed`, which is most of the price of a draft of few layers. The lengths take turns and the lower time
    counts, as another process may slow down one turn of them."""
    chosen = ([row for row in rows if row.greedy] or list(rows))[:TIMED_ROWS]
    run_rows(pair, draft, chosen[:1], gammas[0], batch, listed)  # caches, packed weights, threads
    turns = [
        {g: run_rows(pair, draft, chosen, g, batch, listed).round_s for g in (0, *gammas)}
        for _ in range(PRICE_TURNS)
    ]
    return Prices({g: min(turn[g] for turn in turns) for g in turns[0]})
