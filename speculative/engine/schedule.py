"""Schedules: the draft length of each round, from a few buckets so that few graphs exist.

`Goodput` decides by what is measured, the `Costs` of rounds and the `Work` of requests, and by what is
believed, the `Acceptance` of drafts. Knows polls; nothing of models or rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..protocols import Drafter, Poll, Schedule
from ..requests import check_whole


@dataclass(frozen=True)
class Fixed:
    """The same gamma in every round; 0 is plain decoding."""

    gamma: int

    def __post_init__(self) -> None:
        check_whole("gamma", self.gamma, 0)

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
"""Gammas to choose from: 0 is plain decoding, 1 pays longest as batches grow, and beyond 12 published pairs
rarely gain."""

PROBE_EVERY = 100
"""Rounds until the other choice is tried again: one probe in 100 rounds costs about 1 %."""

BACKOFF = 2
"""Factor of that pause after a probe that changed nothing, so a useless draft costs less and less."""

CHEAP, SHARE = 0.02, 0.0075
"""Drafts that have to read prompts first are tried at once where that takes less than `CHEAP` of a request's
plain rounds, else when it takes at most `SHARE` of the time spent so far."""

DECAY = 0.95
"""Weight of earlier observations at each poll: about 20 polls are remembered."""

MIN_TRIALS = 8.0
"""Judged drafts below which nothing is forgotten: one lucky probe is no reason to draft."""

ENOUGH = 8
"""Drafts judged before the shortest length is given up for the first time: the rounds of `FIRST` judge three
at batch 1, which may be unlucky."""

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


class Costs:
    """Measured: the seconds that a round of each bucket takes.

    All rows are computed in every round, so it does not depend on how many are active. A bucket's cost is
    that of its fastest round at first; where drafts end `early` their mean, as they have different widths.
    """

    def __init__(self, buckets: Sequence[int], early: bool) -> None:
        self.early = early
        self.seconds = dict.fromkeys(buckets, float("inf"))
        self.rounds = dict.fromkeys(buckets, 0)
        self.last = buckets[0]
        self._widths: dict[int, float] = {}  # tokens that a draft has, where they end early

    def learn(self, poll: Poll) -> None:
        gamma, rounds, each = poll.gamma, poll.rounds, poll.seconds / poll.rounds
        width = gamma if poll.width is None else poll.width
        old = typical = self.seconds[gamma]
        measured, mean = self.rounds[gamma], self._widths.get(gamma, width)
        if self.early and gamma:
            # A round of long drafts is no sign of a slow machine: it is compared with one as wide.
            known = mean + max(SAME_WEIGHT, rounds / (measured + rounds)) * (width - mean)
            if measured >= FIRST and mean:
                plain = min(self.seconds[0], old)
                typical = plain + (old - plain) * width / mean
                old = plain + (old - plain) * known / mean
            self._widths[gamma] = known
        if measured >= FIRST and gamma == self.last:
            scale = (1 - SAME_WEIGHT) + SAME_WEIGHT * each / typical
            self.seconds = {g: cost * scale for g, cost in (self.seconds | {gamma: old}).items()}
        elif measured >= FIRST:
            self.seconds[gamma] = old * ((1 - CHANGED_WEIGHT) + CHANGED_WEIGHT * each / typical)
        elif self.early and gamma and measured:
            self.seconds[gamma] = (measured * old + rounds * each) / (measured + rounds)
        else:
            self.seconds[gamma] = min(old, each)
        self.rounds[gamma] += rounds
        self.last = gamma


@dataclass
class Work:
    """Measured: how many tokens a request writes, and what a drafter takes to read its prompt. Who knows both
    beforehand says so (`expect`), which counts until they have been seen."""

    requests: int = 0
    tokens: int = 0  # written by all of them
    row_rounds: int = 0
    rows: float = 1.0  # in the last rounds
    spent_s: float = 0.0
    probe_s: float = 0.0  # what the last drafts after plain rounds cost beside their round
    _read_s: float = 0.0  # of one prompt
    _expected: int = 0  # requests, and of each:
    _expected_read_s: float = 0.0
    _expected_tokens: float = 0.0

    def expect(self, requests: int, reading_s: float, tokens: float, spent_s: float) -> None:
        """What it will take to read the prompts of so many further requests, and how many tokens they will
        write; and what was spent on them beside rounds."""
        self._expected += requests
        self._expected_read_s += (reading_s - requests * self._expected_read_s) / self._expected
        self._expected_tokens += (tokens - requests * self._expected_tokens) / self._expected
        self.spent_s += spent_s

    @property
    def reading_s(self) -> float:
        """Seconds to read a request's prompt; 0 where nobody knows."""
        return self._read_s or self._expected_read_s

    @property
    def written(self) -> float:
        """Tokens that a request writes; 0 where nobody knows. Those under way have written half of theirs;
        until half as many have ended it is what was expected, if anything was."""
        ended, half = self.requests - self.rows, self.rows / 2
        if self.tokens > 0 and ended >= half:
            return self.tokens / (ended + half)
        return self._expected_tokens

    def learn(self, poll: Poll, *, probe: bool) -> None:
        """Learns from rounds; `probe` says that they draft behind plain ones."""
        self.spent_s += poll.seconds
        self.requests += poll.admitted
        self.tokens += poll.row_rounds + poll.accepted
        self.row_rounds += poll.row_rounds
        if poll.row_rounds:  # else all rows had ended within their guesses
            self.rows = poll.row_rounds / poll.rounds
        if probe:
            self.probe_s = poll.reading_s
        if poll.read:
            each, known = poll.reading_s / poll.read, self._read_s
            if not known or (probe and each < known):  # a probe also reads what plain rounds wrote
                self._read_s = each
            elif not probe:
                self._read_s += CHANGED_WEIGHT * (each - known)


@dataclass
class Acceptance:
    """Believed: how many tokens a round writes, from a running mean over all rows.

    Where drafts end `early`, gamma is only an upper bound. The formula then overestimates, and is corrected
    by the number of tokens that rounds of each bucket wrote.
    """

    early: bool
    judged: int = 0  # drafts of all rounds
    _accepted: float = 0.0
    _trials: float = 0.0
    _share: dict[int, float] = field(default_factory=dict)  # of the formula, that a bucket writes

    @property
    def alpha(self) -> float:
        """Running probability that a draft is kept, given that those before it were."""
        return (self._accepted + PRIOR_ACCEPTED) / (self._trials + PRIOR_TRIALS)

    def tokens(self, gamma: int, alpha: float | None = None) -> float:
        """Tokens of a round and row: the formula; corrected, where drafts end early, by the nearest measured
        bucket below."""
        formula = expected_tokens(self.alpha if alpha is None else alpha, gamma)
        measured = [g for g in self._share if g <= gamma]
        return formula * (self._share[max(measured)] if measured else 1.0)

    def learn(self, poll: Poll, measured: int) -> None:
        """Learns from rounds, the last ones of `measured` of their bucket."""
        if self._trials > MIN_TRIALS:
            self._trials, self._accepted = DECAY * self._trials, DECAY * self._accepted
        self.judged += poll.judged
        self._trials += poll.judged
        self._accepted += poll.accepted
        if self.early and poll.gamma:
            formula = expected_tokens(self.alpha, poll.gamma)
            seen = (1 + poll.accepted / max(1, poll.row_rounds)) / formula
            known = self.tokens(poll.gamma) / formula
            # The mean at first: the formula's own estimate would take fifty rounds to fade.
            weight = max(1 - DECAY, poll.rounds / measured)
            self._share[poll.gamma] = (1 - weight) * known + weight * seen


class Goodput:
    """Decided: the gamma with the most expected tokens per second, from measured `costs` and the believed
    `acceptance`.

    Where drafting loses, gamma 0 wins. Single rounds probe the other choice (drafts while nothing is drafted,
    none while something is): after `PROBE_EVERY` rounds, then after twice as many each time that the probe
    changes nothing.

    Before it drafts for a request a drafter reads its prompt, with an encoder of its own also the audio. This
    time is measured per prompt and spread over the tokens that a request writes (`work`), as a part of what
    drafts cost. A probe that has to read prompts is as rare as they are dear; the first drafts wait until
    they are worth their trial, see `CHEAP`.

    `early` says that the drafter may end drafts early. Rounds in which nothing was drafted are then plain
    ones and say nothing about drafts.
    """

    def __init__(self, buckets: Sequence[int] = BUCKETS, *, early: bool = False) -> None:
        self.buckets = tuple(sorted(buckets))
        self.early = early
        self.costs, self.work = Costs(self.buckets, early), Work()
        self.acceptance = Acceptance(early)
        self.rounds = 0
        self._pause = self.next_probe = PROBE_EVERY

    @property
    def decision(self) -> str:
        """What has been decided, and why, in a line."""
        best, work = self.best(), self.work
        tried = self.acceptance.judged
        chosen = f"drafts of {best}" if best else "no drafts" if tried else "drafts not tried"
        if not (work.row_rounds and work.reading_s and work.written):
            return chosen
        plain = work.written * self.costs.seconds[0] * self.rounds / work.row_rounds
        reading, plainly = f"{1000 * work.reading_s:.0f} ms", f"{1000 * plain:.0f} ms"
        return f"{chosen}: {reading} to read a request, {plainly} to decode it plainly"

    def choose(self) -> int:
        best, affordable, costs = self.best(), self._affordable(), self.costs
        for shorter, gamma in zip((0, *self.buckets), self.buckets, strict=False):
            # A longer draft costs at least as much as a shorter one: it is not tried if it could not pay
            # even at that cost. The two shortest are always tried, to measure costs and acceptance.
            few = gamma == self.buckets[1] and self.acceptance.judged < ENOUGH
            if few or costs.rounds[gamma] < FIRST:
                bound = self._rate(gamma, costs.seconds[shorter])
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
        return self._rate(gamma, self.costs.seconds[gamma])

    def _rate(self, gamma: int, cost: float, alpha: float | None = None) -> float:
        """Expected tokens per second and row, where a round costs `cost`."""
        expected, work = self.acceptance.tokens(gamma, alpha), self.work
        written = work.written
        if gamma and written:  # for drafts prompts are read
            return expected / (cost + work.rows * expected * (work.reading_s / written))
        return expected / cost

    def _affordable(self) -> bool:
        """Whether drafts may be tried: prompts have been read, or cost little beside what they may save."""
        work = self.work
        if self.costs.last or not work.reading_s or not work.written:
            return True
        plain = work.written * self.costs.seconds[0]  # of all rows together
        return work.rows * work.reading_s <= max(CHEAP * plain, SHARE * work.spent_s)

    def learn(self, poll: Poll) -> None:
        """Learns from rounds, but for those in which a coarse clock did not advance."""
        if poll.seconds <= 0:
            return
        before, gamma = self.best(), poll.gamma
        self.work.learn(poll, probe=bool(gamma) and not self.costs.last)
        probed = self.rounds >= self.next_probe and bool(gamma) != bool(before)
        self.rounds += poll.rounds
        if self.early and gamma and not poll.judged:
            return
        self.costs.learn(poll)
        self.acceptance.learn(poll, self.costs.rounds[gamma])
        if bool(self.best()) != bool(before):
            self._wait(PROBE_EVERY)
        elif probed and self._promising(poll):
            self._pause, self.next_probe = 1, self.rounds + 1  # its prompts have been read
        elif probed:
            self._wait(max(BACKOFF * self._pause, PROBE_EVERY))

    def _promising(self, poll: Poll) -> bool:
        """Whether a probe alone, without earlier observations, suggests a change."""
        if not poll.gamma:
            return poll.rounds / poll.seconds > self._goodput(self.best())
        rate = poll.accepted / max(1, poll.judged)
        return self._rate(poll.gamma, self.costs.seconds[poll.gamma], rate) > self._goodput(0)

    def _wait(self, rounds: int) -> None:
        """Waits so many rounds; before drafts that cost more than a plain round, longer in proportion."""
        self._pause = rounds
        dear = 1.0 if self.best() else max(1.0, self.work.probe_s / self.costs.seconds[0])
        self.next_probe = self.rounds + round(rounds * dear)
