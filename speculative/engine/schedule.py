"""Schedules: the draft length of each round, from a few buckets so that few graphs exist.

Knows costs and acceptance; nothing of models or slots.
"""

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

    def choose(self) -> int:
        return self.gamma

    def learn(self, poll: Poll) -> None:
        """Does nothing."""


def schedule_for(gamma: int | None, drafter: Drafter | None) -> Schedule:
    """A fixed `gamma`, or the measured best where it is None; no drafts without a drafter."""
    if drafter is None or gamma is not None:
        return Fixed(gamma if drafter is not None and gamma else 0)
    return Goodput(early=drafter.needs.ends_early)


BUCKETS = (0, 1, 2, 4, 6, 8, 12)
"""Gammas to choose from: 0 is plain decoding, 1 pays longest as batches grow (tiny.en at batch 8: 1.10, where
4 gives 0.87 of plain decoding), and beyond 12 published pairs rarely gain."""

PROBE_EVERY = 100
"""Rounds until the other choice is tried again: one probe in 100 rounds costs about 1 %."""

BACKOFF = 2
"""Factor of that pause after a probe that changed nothing, so a useless draft costs less and less."""

CHEAP, SHARE = 0.1, 0.0075
"""Drafts that have to read prompts first are tried at once where that takes less than `CHEAP` of a request's
plain rounds, else when it takes at most `SHARE` of the time spent so far. Tried at once whatever it cost,
tiny.en for base, with an encoder of its own, took auto to 0.89 of plain decoding (12 s, batch 8)."""

DECAY = 0.95
"""Weight of earlier observations at each poll: about 20 polls are remembered."""

MIN_TRIALS = 8.0
"""Judged drafts below which nothing is forgotten: one lucky probe is no reason to draft."""

ENOUGH = 8
"""Drafts judged before the shortest length is given up for the first time. After three, which is what the
rounds of `FIRST` judge at batch 1, tiny.en in bfloat16 decoded plainly, where its draft saves 13 %."""

PRIOR_ACCEPTED, PRIOR_TRIALS = 0.5, 1.0
"""One assumed trial, half accepted, which keeps the acceptance off 0 and 1."""

FIRST = 3
"""Rounds of a bucket whose fastest one is its cost: the first ones also pay for cold caches."""

SAME_WEIGHT = 0.1
"""Weight of a round of the same bucket as the one before, which scales the costs of all buckets: the
machine becomes slower or faster, and rows longer, for every length alike."""

CHANGED_WEIGHT = 0.3
"""Weight of a round after a change of bucket: it says what this bucket costs, but such rounds are few."""


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
    on how many are active); acceptance is a running mean over all rows. Where drafting loses, gamma 0
    wins. Single rounds probe the other choice (drafts while nothing is drafted, none while something
    is): after `probe_every` rounds, then after twice as many each time that the probe changes nothing.

    Before it drafts for a request a drafter reads its prompt, with an encoder of its own also the audio. This
    time is measured per prompt and spread over the tokens that a request writes, as a part of what drafts
    cost. A probe that has to read prompts is as rare as they are dear. Who knows beforehand what reading
    will cost says so (`expect`): the first drafts then wait until they are worth their trial, see `CHEAP`.

    `early` says that the drafter may end drafts early, so that gamma is only an upper bound. The formula
    then overestimates, and is corrected by the number of tokens that rounds of each bucket wrote; the cost of
    a bucket is the mean of its first rounds, which have different widths, and not that of the fastest. Rounds
    in which nothing was drafted are plain ones and say nothing about drafts.
    """

    def __init__(
        self,
        buckets: Sequence[int] = BUCKETS,
        *,
        probe_every: int = PROBE_EVERY,
        decay: float = DECAY,
        first: int = FIRST,
        early: bool = False,
    ) -> None:
        if len(buckets) < 2 or 0 not in buckets:
            raise SpeculativeError(
                f"buckets {tuple(buckets)} need 0, which is plain decoding, and another"
            )
        self.buckets = tuple(sorted(buckets))
        self.probe_every, self.decay = probe_every, decay
        self.first = first
        self.cost = dict.fromkeys(self.buckets, float("inf"))
        self.measured = dict.fromkeys(self.buckets, 0)
        self.accepted = self.trials = 0.0
        self.judged = 0  # of all rounds
        self.rounds = 0
        self.last = self.buckets[0]
        self.early = early
        self.share: dict[
            int, float
        ] = {}  # of the formula's tokens that rounds of a bucket actually write
        self.pause, self.next_probe = probe_every, probe_every
        self.reading_s = 0.0  # of one prompt
        self.probe_s = 0.0  # what the last drafts after plain rounds cost beside their round
        self.requests = self.tokens = 0  # begun, and written by all of them
        self.rows, self.row_rounds = 1.0, 0  # in the last rounds; in all of them
        # Tokens that a draft of each bucket has, where they end early.
        self.width: dict[int, float] = {}
        self.spent_s = 0.0
        self.expected = 0  # requests, see `expect`, and of each:
        self.expected_reading_s = self.expected_tokens = 0.0

    @property
    def alpha(self) -> float:
        """Running probability that a draft is kept, given that those before it were."""
        return (self.accepted + PRIOR_ACCEPTED) / (self.trials + PRIOR_TRIALS)

    def expect(self, requests: int, reading_s: float, tokens: float, spent_s: float) -> None:
        """Says what it will take to read the prompts of so many further requests, and how many tokens they
        will write, which counts until both have been seen; and what was spent on them beside rounds."""
        self.expected += requests
        self.expected_reading_s += (reading_s - requests * self.expected_reading_s) / self.expected
        self.expected_tokens += (tokens - requests * self.expected_tokens) / self.expected
        self.spent_s += spent_s

    @property
    def decision(self) -> str:
        """What has been decided, and why, in a line."""
        best, each = self.best(), self.reading_s or self.expected_reading_s
        chosen = f"drafts of {best}" if best else "no drafts" if self.judged else "drafts not tried"
        if not (self.row_rounds and each):
            return chosen
        plain = self._written() * self.cost[0] * self.rounds / self.row_rounds
        return f"{chosen}: {1000 * each:.0f} ms to read a request, {1000 * plain:.0f} ms to decode it plainly"

    def choose(self) -> int:
        best, affordable = self.best(), self._affordable()
        for shorter, gamma in zip((0, *self.buckets), self.buckets, strict=False):
            # A longer draft costs at least as much as a shorter one: it is not tried if it could not pay
            # even at that cost. The two shortest are always tried, to measure costs and acceptance.
            few = gamma == self.buckets[1] and self.judged < ENOUGH
            if few or self.measured[gamma] < self.first:
                bound = self._rate(gamma, self.cost[shorter])
                if gamma <= self.buckets[1] or bound > self._goodput(best):
                    return gamma if affordable else best
                break
        if self.rounds >= self.next_probe:
            return 0 if best or not affordable else self.buckets[1]
        return best

    def best(self) -> int:
        """The bucket with the most expected tokens per second; the shorter one of equals."""
        return max(self.buckets, key=self._goodput)  # they ascend, and the first one is taken

    def _goodput(self, gamma: int) -> float:
        return self._rate(gamma, self.cost[gamma])

    def _rate(self, gamma: int, cost: float, alpha: float | None = None) -> float:
        """Expected tokens per second and row, where a round costs `cost`."""
        expected = self._expected(self.alpha if alpha is None else alpha, gamma)
        written = self._written()
        if gamma and written:  # for drafts prompts are read
            each = (self.reading_s or self.expected_reading_s) / written
            return expected / (cost + self.rows * expected * each)
        return expected / cost

    def _written(self) -> float:
        """Tokens that a request writes; 0 where nobody knows. Those under way have written half of theirs;
        until half as many have ended it is what was expected, if anything was."""
        ended, half = self.requests - self.rows, self.rows / 2
        if self.tokens > 0 and ended >= half:
            return self.tokens / (ended + half)
        return self.expected_tokens

    def _affordable(self) -> bool:
        """Whether drafts may be tried: prompts have been read, or cost little beside what they may save."""
        each, written = self.reading_s or self.expected_reading_s, self._written()
        if self.last or not each or not written:
            return True
        plain = written * self.cost[0]  # of all rows together
        return self.rows * each <= max(CHEAP * plain, SHARE * self.spent_s)

    def _expected(self, alpha: float, gamma: int) -> float:
        """The formula; corrected, where drafts end early, by the nearest measured bucket below."""
        measured = [g for g in self.share if g <= gamma]
        return expected_tokens(alpha, gamma) * (self.share[max(measured)] if measured else 1.0)

    def learn(self, poll: Poll) -> None:
        """Learns from rounds, but for those in which a coarse clock did not advance."""
        if poll.seconds <= 0:
            return
        before = self.best()
        self.spent_s += poll.seconds
        self._note_work(poll)
        if self.early and poll.gamma and not poll.judged:
            self.rounds += poll.rounds
            return
        gamma, each = poll.gamma, poll.seconds / poll.rounds
        probed = self.rounds >= self.next_probe and bool(gamma) != bool(before)
        self.rounds += poll.rounds
        if self.trials > MIN_TRIALS:
            self.trials, self.accepted = self.decay * self.trials, self.decay * self.accepted
        self.judged += poll.judged
        self.trials += poll.judged
        self.accepted += poll.accepted
        self._measure(gamma, poll.rounds, each, gamma if poll.width is None else poll.width)
        if self.early and gamma:
            self._correct(poll)
        if bool(self.best()) != bool(before):
            self._pause(self.probe_every)
        elif probed and self._promising(poll, each):
            self.pause, self.next_probe = 1, self.rounds + 1  # its prompts have been read
        elif probed:
            self._pause(max(BACKOFF * self.pause, self.probe_every))

    def _note_work(self, poll: Poll) -> None:
        self.requests += poll.admitted
        self.tokens += poll.row_rounds + poll.accepted
        self.row_rounds += poll.row_rounds
        if poll.row_rounds:  # else all rows had ended within their guesses
            self.rows = poll.row_rounds / poll.rounds
        probe = poll.gamma and not self.last
        if probe:
            self.probe_s = poll.reading_s
        if poll.read:
            each, known = poll.reading_s / poll.read, self.reading_s
            if not known or (probe and each < known):  # a probe also reads what plain rounds wrote
                self.reading_s = each
            elif not probe:
                self.reading_s += CHANGED_WEIGHT * (each - known)

    def _measure(self, gamma: int, rounds: int, each: float, width: float) -> None:
        old = typical = self.cost[gamma]
        measured, mean = self.measured[gamma], self.width.get(gamma, width)
        if self.early and gamma:
            # A round of long drafts is no sign of a slow machine: it is compared with one as wide.
            known = mean + max(SAME_WEIGHT, rounds / (measured + rounds)) * (width - mean)
            if measured >= self.first and mean:
                plain = min(self.cost[0], old)
                typical = plain + (old - plain) * width / mean
                old = plain + (old - plain) * known / mean
            self.width[gamma] = known
        if measured < self.first:
            first = self.early and gamma and measured
            self.cost[gamma] = (
                (measured * old + rounds * each) / (measured + rounds) if first else min(old, each)
            )
        elif gamma == self.last:
            scale = (1 - SAME_WEIGHT) + SAME_WEIGHT * each / typical
            self.cost = {g: cost * scale for g, cost in (self.cost | {gamma: old}).items()}
        else:
            self.cost[gamma] = old * ((1 - CHANGED_WEIGHT) + CHANGED_WEIGHT * each / typical)
        self.measured[gamma] += rounds
        self.last = gamma

    def _correct(self, poll: Poll) -> None:
        wrote = 1 + poll.accepted / max(1, poll.row_rounds)
        seen = wrote / expected_tokens(self.alpha, poll.gamma)
        known = self._expected(self.alpha, poll.gamma) / expected_tokens(self.alpha, poll.gamma)
        # The mean at first: the formula's own estimate would take fifty rounds to fade.
        weight = max(1 - self.decay, poll.rounds / self.measured[poll.gamma])
        self.share[poll.gamma] = (1 - weight) * known + weight * seen

    def _promising(self, poll: Poll, each: float) -> bool:
        """Whether a probe alone, without earlier observations, suggests a change."""
        if not poll.gamma:
            return 1 / each > self._goodput(self.best())
        rate = poll.accepted / max(1, poll.judged)
        return self._rate(poll.gamma, self.cost[poll.gamma], rate) > self._goodput(0)

    def _pause(self, rounds: int) -> None:
        """Waits so many rounds; before drafts that cost more than a plain round, longer in proportion."""
        self.pause = rounds
        dear = 1.0 if self.best() else max(1.0, self.probe_s / self.cost[0])
        self.next_probe = self.rounds + round(rounds * dear)
