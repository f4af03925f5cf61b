"""Acceptance rules by exact enumeration: random numbers are integrated out, never sampled.

A verdict is a step function of its random numbers. The steps are found by bisection on the rule itself,
so the probability of every outcome is exact whatever the rule's formula, and nothing of it is repeated
here. `speculative_joint` judges one round. `decoded_joint` follows a text over all the rounds that it
takes; which random numbers a round reads is recorded from the code, so a number that two rounds share is
one variable here too.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from unittest import mock

import torch
from torch import Tensor

from forescribe.speculative.drafters.model_drafter import ModelDrafter
from forescribe.speculative.requests import Mode
from forescribe.speculative.rounds.accept import draw
from forescribe.speculative.rounds.round import Parts, run_round
from forescribe.speculative.rows import Counters, Rows
from forescribe.speculative.testing import TinyModel
from forescribe.speculative.types import Draft, Verdict

V = 3
TOP = 1 - 2**-53  # the largest random number
DRAFT_DISTRIBUTIONS = [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]

Text = tuple[int, ...]
Table = dict[Text, list[float]]
Joint = dict[Text, float]
Judge = Callable[[Tensor, Tensor, Tensor], Verdict]  # context [M], accept_u [M, G], extra_u [M, N]
Interval = tuple[float, float]
Key = tuple[int, int, int]  # start of the round, slot, stream: one random number of a row


def distributions(
    seed: int, longest: int, choices: list[list[float]] | None, vocab: int = V
) -> Table:
    """One next-token distribution per prefix of up to `longest` tokens; eighths, or from `choices`."""
    generator = torch.Generator().manual_seed(seed)
    table = {}
    for length in range(longest + 1):
        for prefix in itertools.product(range(vocab), repeat=length):
            if choices is None:
                eighths = torch.randint(0, vocab, (8,), generator=generator).bincount(
                    minlength=vocab
                )
                table[prefix] = (eighths / 8).tolist()
            else:
                pick = int(torch.randint(len(choices), (1,), generator=generator))
                table[prefix] = choices[pick]
    return table


def joint(p: Table, gamma: int, vocab: int = V) -> Joint:
    """The target's own distribution of the next gamma + 1 tokens."""
    return {
        text: float(torch.tensor([p[text[:i]][text[i]] for i in range(gamma + 1)]).double().prod())
        for text in itertools.product(range(vocab), repeat=gamma + 1)
    }


def last_true(holds: Callable[[Tensor], Tensor], count: int) -> Tensor:
    """For each of `count` predicates over a number, true from 0 on: where it ends. 1 if it never does."""
    low, high = torch.zeros(count, dtype=torch.float64), torch.ones(count, dtype=torch.float64)
    for _ in range(54):
        middle = (low + high) / 2
        true = holds(middle)
        low, high = torch.where(true, middle, low), torch.where(true, high, middle)
    return high


@dataclass(frozen=True)
class Box:
    """Acceptance numbers on which a verdict is constant: one interval per draft."""

    sides: tuple[Interval, ...]
    kept: int  # drafts that the verdict accepts there
    extra: tuple[Interval, ...]  # by token of the vocabulary: the numbers that add it behind them

    @property
    def volume(self) -> float:
        return float(torch.tensor([b - a for a, b in self.sides], dtype=torch.float64).prod())


def boxes(judge: Judge, contexts: int, gamma: int, vocab: int) -> list[list[Box]]:
    """All boxes of each of `contexts` drafts. The borders of a coordinate are sought with the others at
    both ends."""
    corners = torch.tensor(list(itertools.product([0.0, TOP], repeat=gamma))).double()
    starts = [(i, corners[corners[:, i] == 0]) for i in range(gamma)]
    # For every context: each coordinate in turn, from each corner of the others.
    noise = torch.cat([c for _, c in starts]).repeat(contexts, 1)
    moving = torch.cat([torch.full((len(c),), i) for i, c in starts]).repeat(contexts)
    context = torch.arange(contexts).repeat_interleave(len(noise) // contexts)
    none = torch.zeros(len(noise), gamma + 1, dtype=torch.float64)
    kept = judge(context, noise, none).num_accepted

    def unchanged(u: Tensor) -> Tensor:
        moved = noise.scatter(1, moving[:, None], u[:, None])
        return judge(context, moved, none).num_accepted == kept

    ends = last_true(unchanged, len(noise)).reshape(contexts, gamma, -1).tolist()
    sides = [list(itertools.product(*map(_intervals, found))) for found in ends]
    flat = [(c, box) for c, found in enumerate(sides) for box in found]
    extras = iter(_extras(judge, flat, gamma, vocab))
    return [[Box(box, *next(extras)) for box in found] for found in sides]


def _intervals(ends: list[float]) -> list[Interval]:
    cuts = sorted({0.0, *ends, 1.0})
    return [pair for pair in itertools.pairwise(cuts) if pair[1] - pair[0] > 1e-12]


def _extras(
    judge: Judge, found: list[tuple[int, tuple[Interval, ...]]], gamma: int, vocab: int
) -> list[tuple[int, tuple[Interval, ...]]]:
    """For each box: the drafts kept there, and which numbers add which token behind them."""
    context = torch.tensor([c for c, _ in found])
    centre = torch.tensor([[(a + b) / 2 for a, b in box] for _, box in found]).double()
    centre = centre.reshape(len(found), gamma)

    def token(u: Tensor) -> Tensor:  # [boxes * M] numbers, M for each box
        each = len(u) // len(found)
        verdict = judge(
            context.repeat_interleave(each),
            centre.repeat_interleave(each, 0),
            u[:, None].expand(-1, gamma + 1),
        )
        return verdict.tokens.gather(1, verdict.num_accepted[:, None])[:, 0]

    none = torch.zeros(len(found), gamma + 1, dtype=torch.float64)
    kept = judge(context, centre, none).num_accepted.tolist()
    return list(zip(kept, _steps(token, vocab, len(found)), strict=True))


def _steps(token: Callable[[Tensor], Tensor], vocab: int, count: int) -> list[tuple[Interval, ...]]:
    """For each of `count` draws the interval of every token: larger numbers give smaller tokens."""
    at_least = torch.arange(1, vocab).repeat(count)
    ends = last_true(lambda u: token(u) >= at_least, len(at_least)).reshape(count, -1).tolist()
    # Where no number gives a token so large, the predicate is false at 0 already.
    return [
        tuple((below, above) for above, below in itertools.pairwise([1.0, *row, 0.0]))
        for row in ends
    ]


@dataclass
class Chance:
    """One row's rule, distributions and drafts; `q=None` drafts the chain that `fixed` names."""

    rule: type
    p: Table
    q: Table | None
    gamma: int
    vocab: int = V
    valid: int | None = None  # drafts that count; None: all
    fixed: Callable[[Text], Text] = lambda text: (1, 0, 2)

    def judged(self, longest: int) -> dict[tuple[Text, Text], list[Box]]:
        """The rule's verdicts on every draft behind every text of up to `longest` tokens."""
        keys = [
            (text, chain)
            for length in range(longest + 1)
            for text in itertools.product(range(self.vocab), repeat=length)
            for chain, _ in self.chains(text)
        ]
        found = boxes(self._judge(keys), len(keys), self.gamma, self.vocab)
        return dict(zip(keys, found, strict=True))

    def _judge(self, keys: list[tuple[Text, Text]]) -> Judge:
        gamma, valid = self.gamma, self.gamma if self.valid is None else self.valid
        after = [[text + chain[:i] for i in range(gamma + 1)] for text, chain in keys]
        p = torch.tensor([[self.p[t] for t in texts] for texts in after], dtype=torch.float64)
        tokens = torch.tensor([chain for _, chain in keys]).reshape(len(keys), gamma)
        q = None
        if self.q is not None:
            table = [[self.q[t] for t in texts[:-1]] for texts in after]
            q = torch.tensor(table, dtype=torch.float64).reshape(len(keys), gamma, self.vocab)

        def judge(context: Tensor, accept_u: Tensor, extra_u: Tensor) -> Verdict:
            counted = torch.full_like(context, valid)
            draft = Draft(tokens[context], counted, None if q is None else q[context])
            return self.rule.judge(draft, p[context], accept_u, extra_u)

        return judge

    def chains(self, text: Text) -> Iterator[tuple[Text, float]]:
        """What may be drafted behind `text`, with its probability."""
        if self.q is None:
            yield self.fixed(text)[: self.gamma], 1.0
            return
        for chain in itertools.product(range(self.vocab), repeat=self.gamma):
            weight = 1.0
            for i, token in enumerate(chain):
                weight *= self.q[text + chain[:i]][token]
            if weight:
                yield chain, weight


def speculative_joint(
    rule: type, p: Table, q: Table | None, gamma: int, valid: int | None = None
) -> tuple[Joint, float]:
    """The distribution of the next gamma + 1 tokens when the first come from a verdict, the rest from p,
    and how many drafts are kept on average."""
    made = Chance(rule, p, q, gamma, valid=valid)
    found: Joint = dict.fromkeys(itertools.product(range(V), repeat=gamma + 1), 0.0)
    mean, judged = 0.0, made.judged(0)
    for chain, weight in made.chains(()):
        for box in judged[(), chain]:
            mean += weight * box.volume * box.kept
            for token, (low, high) in enumerate(box.extra):
                for rest in itertools.product(range(V), repeat=gamma - box.kept):
                    text = (*chain[: box.kept], token, *rest)
                    tail = 1.0
                    for i in range(box.kept + 1, gamma + 1):
                        tail *= p[text[:i]][text[i]]
                    found[text] += weight * box.volume * (high - low) * tail
    return found, mean


# -- several rounds --------------------------------------------------------------------------------


@dataclass(frozen=True)
class RoundKeys:
    """Which random numbers a round reads."""

    draft: tuple[Key, ...]  # [G]
    accept: tuple[Key, ...]  # [G]
    extra: tuple[Key, ...]  # [N]


def keys_of_round(rule: type, length: int, gamma: int) -> RoundKeys:
    """Recorded while a round runs for a sampled row of `length` tokens, with a model as drafter."""
    calls: list[list[Key]] = []

    def record(seed: Tensor, start: Tensor, slot: Tensor, stream: int) -> Tensor:
        start, slot = torch.broadcast_tensors(start, slot)
        places = zip(start.flatten().tolist(), slot.flatten().tolist(), strict=True)
        calls.append([(a, b, int(stream)) for a, b in places])
        return torch.full(slot.shape, 0.5)

    target, drafter = TinyModel(vocab=V), ModelDrafter(TinyModel(vocab=V, seed=1))
    place = torch.device("cpu")
    rows = Rows.empty(1, length + gamma + 2, place)
    rows.mode, rows.lengths[:], rows.limits[:] = Mode(sampling=True), length, length + gamma + 1
    rows.sampling.temperature[:], rows.gamma[:], rows.active[:] = 1.0, gamma, True
    target.allocate(1, rows.reach)
    drafter.allocate(1, rows.reach, place)
    parts = Parts(target, drafter, rule(), (), torch.tensor([V + 1]))
    with (
        mock.patch("forescribe.speculative.rounds.accept.uniform", record),
        mock.patch("forescribe.speculative.drafters.model_drafter.uniform", record),
    ):
        run_round(rows, parts, gamma, Counters.zeros(gamma, place))
    *draft, accept, extra = calls
    return RoundKeys(tuple(k for keys in draft for k in keys), tuple(accept), tuple(extra))


Known = dict[Key, Interval]  # what earlier rounds have revealed of random numbers


def decoded_joint(
    made: Chance, length: int, *, keep: Callable[[Key], Key] = lambda key: key
) -> tuple[Joint, int]:
    """The distribution of the first `length` tokens of a text, over as many rounds as they take, and the
    most rounds that a text took.

    A random number that an earlier round has used is known to lie in the interval which led here. `keep`
    maps keys, to see what would become of a text whose rounds share random numbers.
    """
    keys = [_mapped(keys_of_round(made.rule, 1 + n, made.gamma), keep) for n in range(length)]
    later = [_union(keys[n:]) for n in range(length)]
    found: Joint = defaultdict(float)
    states: dict[tuple[Text, tuple[tuple[Key, Interval], ...]], float] = {((), ()): 1.0}
    rounds, judged = 0, made.judged(length - 1)
    while states:
        rounds += 1
        following: dict = defaultdict(float)
        for (text, known), weight in states.items():
            for chance, grown, learnt in _round(made, judged, keys[len(text)], text, dict(known)):
                if len(grown) >= length:
                    found[grown[:length]] += weight * chance
                    continue
                # Numbers that no later round reads are forgotten, so that states meet again.
                open_ = tuple(sorted((k, v) for k, v in learnt.items() if k in later[len(grown)]))
                following[grown, open_] += weight * chance
        states = following
    return dict(found), rounds


def _round(
    made: Chance,
    judged: dict[tuple[Text, Text], list[Box]],
    keys: RoundKeys,
    text: Text,
    known: Known,
) -> Iterator[tuple[float, Text, Known]]:
    """Every outcome of one round: its probability, the text behind it, what is known then."""
    for weight, chain, drafted in _drafts(made, keys, text, known):
        for box in judged[text, chain]:
            within = _narrow(drafted, list(zip(keys.accept, box.sides, strict=True)))
            if within is None:
                continue
            for token, side in enumerate(box.extra):
                ended = _narrow(within[1], [(keys.extra[box.kept], side)])
                if ended is not None:
                    chance = weight * within[0] * ended[0]
                    yield chance, (*text, *chain[: box.kept], token), ended[1]


def _drafts(
    made: Chance, keys: RoundKeys, text: Text, known: Known
) -> Iterator[tuple[float, Text, Known]]:
    if made.q is None:
        yield 1.0, made.fixed(text)[: made.gamma], known
        return
    branches: list[tuple[float, Text, Known]] = [(1.0, (), known)]
    for key in keys.draft:
        grown = []
        for weight, chain, learnt in branches:
            for token, side in enumerate(_draw_steps(tuple(made.q[text + chain]))):
                narrowed = _narrow(learnt, [(key, side)])
                if narrowed is not None:
                    grown.append((weight * narrowed[0], (*chain, token), narrowed[1]))
        branches = grown
    yield from branches


@cache
def _draw_steps(q: tuple[float, ...]) -> tuple[Interval, ...]:
    weights = torch.tensor(q, dtype=torch.float64)
    return _steps(lambda u: draw(weights.expand(len(u), -1), u), len(q), 1)[0]


def _narrow(known: Known, sides: list[tuple[Key, Interval]]) -> tuple[float, Known] | None:
    """The probability that numbers lie in these intervals, given what is known; None where it is 0."""
    chance, learnt = 1.0, dict(known)
    for key, (low, high) in sides:
        before = learnt.get(key, (0.0, 1.0))
        low, high = max(low, before[0]), min(high, before[1])
        if high - low <= 1e-12:
            return None
        chance *= (high - low) / (before[1] - before[0])
        learnt[key] = (low, high)
    return chance, learnt


def _mapped(keys: RoundKeys, keep: Callable[[Key], Key]) -> RoundKeys:
    return RoundKeys(*(tuple(map(keep, part)) for part in (keys.draft, keys.accept, keys.extra)))


def _union(rounds: list[RoundKeys]) -> frozenset[Key]:
    return frozenset(k for r in rounds for part in (r.draft, r.accept, r.extra) for k in part)
