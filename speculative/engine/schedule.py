"""Draft length. A round has one static gamma, chosen from a few buckets so that few graphs exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import SpeculativeError
from ..protocols import Drafter, Poll, Schedule


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

    def learn(self, poll: Poll) -> None:
        """A fixed length learns nothing."""


def schedule_for(gamma: int | None, drafter: Drafter | None) -> Schedule:
    """`gamma` drafts in every round, or as many as pay where it is None; none without a drafter."""
    if drafter is None or gamma is not None:
        return Fixed(gamma if drafter is not None and gamma else 0)
    return Goodput(early=drafter.ends_early)


FEWEST = 8.0
"""Judged drafts that are not forgotten: one lucky probe is no reason to draft."""


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
    0 wins by itself. What the other choice is worth, drafts where nothing is drafted and none where
    something is, is asked by single rounds: after `probe_every` rounds, then after twice as many for as
    long as the answer stays no. So a draft that is of no use costs ever less.

    Rounds with sampled rows take the fixed `sampling_gamma`: their draws depend on the draft lengths,
    and a seeded answer must not depend on how busy the machine is.

    `early` says that drafts end by the drafter's own doubt, so that gamma is only the most there may
    be. The formula then promises too much, and is corrected by what rounds of each bucket wrote.
    """

    def __init__(
        self,
        buckets: Sequence[int] = (0, 2, 4, 6, 8, 12),
        *,
        sampling_gamma: int = 4,
        probe_every: int = 100,
        decay: float = 0.95,
        first: int = 3,
        early: bool = False,
    ) -> None:
        if len(buckets) < 2 or not {0, sampling_gamma} <= set(buckets):
            raise SpeculativeError(
                f"buckets {tuple(buckets)} need 0, which is plain decoding, and {sampling_gamma}"
            )
        self.buckets = tuple(sorted(buckets))
        self.sampling_gamma, self.probe_every, self.decay = sampling_gamma, probe_every, decay
        # The first rounds of a bucket pay for what is cold; the fastest seen is nearest the truth.
        self.first = first
        self.cost = dict.fromkeys(self.buckets, float("inf"))
        self.measured = dict.fromkeys(self.buckets, 0)
        self.accepted = self.trials = 0.0
        self.rounds = 0
        self.last = self.buckets[0]
        self.early = early
        self.share: dict[int, float] = {}  # of the formula's tokens that rounds of a bucket wrote
        self.pause, self.next_probe = probe_every, probe_every

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
                hoped = self._expected(self.alpha, gamma) / self.cost[shorter]
                if gamma <= self.buckets[1] or hoped > self._goodput(best):
                    return gamma
                break
        if self.rounds >= self.next_probe:
            return 0 if best else self.buckets[1]
        return best

    def best(self) -> int:
        """The bucket with the most expected tokens per second; the shorter one of equals."""
        return max(self.buckets, key=lambda g: (self._goodput(g), -g))

    def _goodput(self, gamma: int) -> float:
        return self._expected(self.alpha, gamma) / self.cost[gamma]

    def _expected(self, alpha: float, gamma: int) -> float:
        """The formula; corrected, where drafts end early, by the nearest measured bucket below."""
        measured = [g for g in self.share if g <= gamma]
        return expected_tokens(alpha, gamma) * (self.share[max(measured)] if measured else 1.0)

    def learn(self, poll: Poll) -> None:
        """Rounds of greedy rows teach; what sampled ones cost and keep is another matter."""
        if poll.sampling:
            return
        gamma, each = poll.gamma, poll.seconds / poll.rounds
        before = self.best()
        probed = self.rounds >= self.next_probe and bool(gamma) != bool(before)
        self.rounds += poll.rounds
        self._remember(poll.judged, poll.accepted)
        self._price(gamma, poll.rounds, each)
        if self.early and gamma:
            self._correct(poll)
        if bool(self.best()) != bool(before):
            self._pause(self.probe_every)
        elif probed and self._promising(poll, each):
            self._pause(1)
        elif probed:
            self._pause(max(2 * self.pause, self.probe_every))

    def _remember(self, trials: int, accepted: int) -> None:
        if self.trials > FEWEST:
            self.trials, self.accepted = self.decay * self.trials, self.decay * self.accepted
        self.trials += trials
        self.accepted += accepted

    def _price(self, gamma: int, rounds: int, each: float) -> None:
        old = self.cost[gamma]
        if self.measured[gamma] < self.first:
            self.cost[gamma] = min(old, each)
        elif gamma == self.last:
            # A machine gets slower and faster for reasons of its own, and rows get longer: that holds for
            # every length alike, measured lately or not.
            pace = 0.9 + 0.1 * each / old
            self.cost = {g: cost * pace for g, cost in self.cost.items()}
        else:
            self.cost[gamma] = 0.7 * old + 0.3 * each
        self.measured[gamma] += rounds
        self.last = gamma

    def _correct(self, poll: Poll) -> None:
        wrote = 1 + poll.accepted / max(1, poll.row_rounds)
        seen = wrote / expected_tokens(self.alpha, poll.gamma)
        known = self._expected(self.alpha, poll.gamma) / expected_tokens(self.alpha, poll.gamma)
        self.share[poll.gamma] = self.decay * known + (1 - self.decay) * seen

    def _promising(self, poll: Poll, each: float) -> bool:
        """Whether a probe on its own, without what was seen before it, speaks for a change."""
        if not poll.gamma:
            return 1 / each > self._goodput(self.best())
        rate = poll.accepted / max(1, poll.judged)
        return self._expected(rate, poll.gamma) / self.cost[poll.gamma] > self._goodput(0)

    def _pause(self, rounds: int) -> None:
        self.pause = rounds
        self.next_probe = self.rounds + rounds
