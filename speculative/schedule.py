"""Draft length. A round has one static gamma, chosen from a few buckets so that few graphs exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speculative.errors import SpeculativeError


@dataclass(frozen=True)
class Fixed:
    """The same gamma in every round; 0 is plain decoding."""

    gamma: int

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise SpeculativeError(f"gamma is {self.gamma}; it must be 0 or more")

    @property
    def buckets(self) -> tuple[int, ...]:
        return (self.gamma,)

    def choose(self, *, sampling: bool) -> int:
        return self.gamma

    def learn(self, gamma: int, rounds: int, trials: int, accepted: int, seconds: float) -> None:
        """A fixed length learns nothing."""


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens per round and row when each draft survives with probability `alpha`, independently.

    (1 - alpha^(gamma + 1)) / (1 - alpha), Leviathan et al. 2023, equation 1; the target's own token
    included.
    """
    if alpha >= 1:
        return gamma + 1.0
    return float((1 - alpha ** (gamma + 1)) / (1 - alpha))


class Goodput:
    """The gamma with the most expected tokens per second, from measured costs and acceptance.

    A round's cost is measured per bucket (all rows are computed in every round, so it does not depend
    on how many are active); acceptance is a running mean over all rows. Where drafting loses, gamma
    0 wins by itself; a short probe every `probe_every` rounds notices when that changes.

    Rounds with sampled rows take the fixed `sampling_gamma`: their draws depend on the draft lengths,
    and a seeded answer must not depend on how busy the machine is.
    """

    def __init__(
        self,
        buckets: Sequence[int] = (0, 2, 4, 6, 8, 12),
        *,
        sampling_gamma: int = 4,
        probe_every: int = 100,
        memory: float = 0.98,
        first: int = 3,
    ) -> None:
        if len(buckets) < 2 or not {0, sampling_gamma} <= set(buckets):
            raise SpeculativeError(
                f"buckets {tuple(buckets)} need 0, which is plain decoding, and {sampling_gamma}"
            )
        self.buckets = tuple(sorted(buckets))
        self.sampling_gamma, self.probe_every, self.memory = sampling_gamma, probe_every, memory
        # The first rounds of a bucket pay for what is cold; the fastest seen is nearest the truth.
        self.first = first
        self.cost = dict.fromkeys(self.buckets, float("inf"))
        self.measured = dict.fromkeys(self.buckets, 0)
        self.accepted = self.trials = 0.0
        self.rounds = 0

    @property
    def alpha(self) -> float:
        """Running chance that a draft is kept, given that those before it were."""
        # One doubtful trial in advance keeps it off 0 and 1.
        return (self.accepted + 0.5) / (self.trials + 1)

    def choose(self, *, sampling: bool) -> int:
        if sampling:
            return self.sampling_gamma
        best = self.best()
        for shorter, gamma in zip((0, *self.buckets), self.buckets, strict=False):
            # A longer draft costs at least what a shorter one does: one that could not pay even at
            # that price is not tried. The two shortest are, to know prices and acceptance at all.
            if self.measured[gamma] < self.first:
                hoped = expected_tokens(self.alpha, gamma) / self.cost[shorter]
                if gamma <= self.buckets[1] or hoped > self._goodput(best):
                    return gamma
                break
        if best == 0 and self.rounds % self.probe_every == 0:
            return self.buckets[1]  # at 0 nothing is learnt about acceptance
        return best

    def best(self) -> int:
        """The bucket with the most expected tokens per second; the shorter one of equals."""
        return max(self.buckets, key=lambda g: (self._goodput(g), -g))

    def _goodput(self, gamma: int) -> float:
        return expected_tokens(self.alpha, gamma) / self.cost[gamma]

    def learn(self, gamma: int, rounds: int, trials: int, accepted: int, seconds: float) -> None:
        """`rounds` rounds with `gamma` took `seconds`; `trials` drafts were judged, `accepted` kept."""
        self.rounds += rounds
        self.trials = self.memory * self.trials + trials
        self.accepted = self.memory * self.accepted + accepted
        each, old = seconds / rounds, self.cost[gamma]
        # Machines get slower and faster for reasons of their own: follow slowly, but downwards at once.
        warm = self.measured[gamma] < self.first
        self.cost[gamma] = min(old, each) if warm else 0.9 * old + 0.1 * each
        self.measured[gamma] += rounds
