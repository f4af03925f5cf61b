"""The choice among checkpoints: tokens per round from accept traces, for the price of a round.

A draft is worth `max over G of E(G) / (G c + t_v(G + 1))`: the tokens that a round of G drafts writes, over
the time that it takes. Loss and word errors do not say that. Knows numbers only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from forescribe.speculative.engine.schedule import expected_tokens

GAMMAS = (2, 4, 6, 8)
"""Draft lengths that are priced: those of the engine's schedule up to 8."""


@dataclass(frozen=True)
class Trace:
    """How probable it is, at each token of an answer, that the draft's own token there is accepted; 0 or 1 in
    greedy rows. `kind` is that of the row."""

    accepted: tuple[float, ...]
    greedy: bool
    kind: str


def simulated(trace: Trace, gamma: int) -> tuple[float, float]:
    """Tokens and rounds of an answer with `gamma` drafts per round.

    The drafts of a round follow the target's own text for as long as they are accepted, so the trace of that
    text decides all rounds. Greedy rounds are counted one after the other; the drawn ones by the mean tokens
    of a round that starts at any place.
    """
    accepted = trace.accepted
    if not trace.greedy:
        starts = [_expected(accepted[i : i + gamma]) for i in range(len(accepted))]
        mean = sum(starts) / len(starts)
        return float(len(accepted)), len(accepted) / mean
    place = rounds = 0
    while place < len(accepted):
        for kept in accepted[place : place + gamma]:
            if kept < 0.5:
                break
            place += 1
        place, rounds = place + 1, rounds + 1
    return float(len(accepted)), float(rounds)


def _expected(chain: Sequence[float]) -> float:
    total, alive = 1.0, 1.0
    for probability in chain:
        alive *= probability
        total += alive
    return total


def tokens_per_round(traces: Iterable[Trace], gamma: int) -> float:
    """E: over all answers together."""
    pairs = [simulated(trace, gamma) for trace in traces]
    rounds = sum(r for _, r in pairs)
    return sum(t for t, _ in pairs) / rounds if rounds else 0.0


def agreement(traces: Iterable[Trace]) -> float:
    """The mean probability that a draft after the target's own text is accepted."""
    values = [value for trace in traces for value in trace.accepted]
    return sum(values) / len(values) if values else 0.0


def _rate(tokens: float, gamma: int) -> float:
    """The acceptance rate with which a round of `gamma` drafts writes so many tokens on average."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if expected_tokens(middle, gamma) < tokens:
            low = middle
        else:
            high = middle
    return high


@dataclass(frozen=True)
class Prices:
    """Seconds of a round by its number of drafts, 0 included: target, draft and all that is around them."""

    round_s: Mapping[int, float]

    def gain(self, traces: Sequence[Trace]) -> tuple[float, int]:
        """The expected speed-up over gamma 0, and the gamma that has it; (1, 0) where drafts do not pay."""
        plain = self.round_s[0]
        gains = [
            (tokens_per_round(traces, gamma) * plain / seconds, gamma)
            for gamma, seconds in sorted(self.round_s.items())
            if gamma
        ]
        return max([(1.0, 0), *gains], key=lambda pair: (pair[0], -pair[1]))

    def break_even(self) -> tuple[float, int] | None:
        """The least acceptance rate of single drafts at which drafting is as fast as gamma 0, and the gamma
        that needs no more; None where not even drafts that are always accepted pay."""
        found = [
            (_rate(seconds / self.round_s[0], gamma), gamma)
            for gamma, seconds in sorted(self.round_s.items())
            if gamma and seconds <= (gamma + 1) * self.round_s[0]
        ]
        return min(found, default=None)

    def verdict(self) -> str:
        """`break_even` in words."""
        found = self.break_even()
        if found is None:
            return (
                "no draft of this shape can pay here: a round costs more than plain decoding of all its "
                "tokens would. Fewer layers, --cut-head or another device may change that"
            )
        rate, gamma = found
        if rate < 0.01:
            return (
                "rounds with drafts took no longer than rounds without: other work on this machine disturbs "
                "the times, so that no acceptance rate can be named"
            )
        return (
            f"a draft of this shape pays from an acceptance rate of {rate:.2f} on, at gamma {gamma}"
        )

    def to_json(self) -> dict[str, float]:
        """By gamma, in milliseconds."""
        return {str(gamma): round(1e3 * s, 4) for gamma, s in sorted(self.round_s.items())}
