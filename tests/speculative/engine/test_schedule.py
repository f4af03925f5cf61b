"""The goodput schedule: picks what the formula says, falls to 0 where drafting loses, recovers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forescribe.speculative import Engine, Goodput, ModelDrafter, Request
from forescribe.speculative.engine.schedule import BUCKETS, expected_tokens
from forescribe.speculative.protocols import Poll
from forescribe.speculative.rows import Rows
from tests.speculative.plain import decode
from tests.speculative.tiny import TinyModel


def run_round(schedule: Goodput, costs: dict[int, float], alpha: float, rounds: int) -> list[int]:
    """Rounds of 8 rows in a world with these costs and this acceptance; the gammas chosen."""
    chosen = []
    for _ in range(rounds):
        gamma = schedule.choose()
        chosen.append(gamma)
        # The expected number of judged and kept drafts per round, scaled up to whole numbers.
        kept = expected_tokens(alpha, gamma) - 1
        judged = kept + (1 - alpha**gamma) if gamma else 0
        schedule.learn(Poll(gamma, 1, 800, round(800 * judged), round(800 * kept), costs[gamma]))
    return chosen


def costs(draft: float, wider: float) -> dict[int, float]:
    """Seconds per round: one target forward, `draft` per drafted token, `wider` per scored one."""
    return {g: 1 + g * (draft + wider) for g in BUCKETS}


@pytest.mark.parametrize(
    ("alpha", "draft", "wider", "best"),
    [
        (0.95, 0.05, 0.0, 12),
        (0.8, 0.10, 0.0, 6),  # table of Leviathan's formula: the optimum is 6
        (0.6, 0.15, 0.0, 2),
        (0.9, 0.30, 0.4, 2),  # a wide batch, where every scored token costs
        (0.8, 0.37, 0.3, 1),  # a wider one: only the first draft is worth its price
        (0.3, 0.30, 0.2, 0),
    ],
)
def test_the_gamma_of_most_tokens_per_second_is_found(alpha, draft, wider, best):
    chosen = run_round(Goodput(), costs(draft, wider), alpha, 60)
    assert chosen[-30:] == [best] * 30


def test_what_is_of_no_use_is_tried_ever_less_and_costs_five_per_cent_at_most():
    world = costs(0.5, 0.5)
    chosen = run_round(Goodput(), world, 0.1, 4000)
    assert sum(world[g] for g in chosen[:1000]) <= 1000 * world[0] * 1.05
    probes = [n for n, gamma in enumerate(chosen) if gamma]
    pauses = [b - a for a, b in zip(probes[-4:], probes[-3:], strict=False)]
    assert pauses == sorted(pauses) and len(probes) <= 3 + 6
    assert sum(world[g] - world[0] for g in chosen[200:]) <= 0.01 * 4000


def test_a_machine_that_slows_down_changes_no_mind():
    """While drafting pays, only drafting rounds are measured: their price alone would seem to rise."""
    schedule, world = Goodput(), costs(0.05, 0.02)
    run_round(schedule, world, 0.9, 110)
    slow = {gamma: 3 * cost for gamma, cost in world.items()}
    assert run_round(schedule, slow, 0.9, 150) == [12] * 150


def test_it_notices_when_drafting_no_longer_pays_though_drafts_are_good():
    """Rows that fill the batch, say: every drafted token now costs what a plain one does."""
    schedule = Goodput()
    assert run_round(schedule, costs(0.05, 0.02), 0.8, 150)[-1] > 0
    dear = costs(0.3, 0.9)
    assert run_round(schedule, dear, 0.8, 600)[-50:].count(0) >= 49


def test_one_lucky_probe_is_no_reason_to_draft():
    schedule, world = Goodput(), costs(0.4, 0.3)
    run_round(schedule, world, 0.05, 99)
    for _ in range(20):
        assert schedule.choose() == 0
        schedule.learn(Poll(0, 1, 1, 0, 0, world[0]))
        if schedule.rounds >= schedule.next_probe:
            break
    assert schedule.choose() == 1
    schedule.learn(Poll(1, 1, 1, 1, 1, world[1]))  # the draft was kept
    assert schedule.best() == 0
    assert schedule.choose() == 0
    schedule.learn(Poll(0, 1, 1, 0, 0, world[0]))
    assert schedule.choose() == 1  # but it asks again at once


def test_three_unlucky_drafts_at_batch_1_are_no_reason_to_stop():
    schedule, world = Goodput(), costs(0.35, 0.05)
    kept, chosen = iter([0, 0, 0, 1, 1, 0, 1, 1]), []
    for _ in range(40):
        gamma = schedule.choose()
        chosen.append(gamma)
        each = min(gamma, next(kept, 1)) if gamma else 0
        schedule.learn(Poll(gamma, 1, 1, min(gamma, 1 + each), each, world[gamma]))
    assert sum(map(bool, chosen)) > 30


def test_it_notices_when_drafts_become_good_again():
    schedule, world = Goodput(), costs(0.05, 0.02)
    assert run_round(schedule, world, 0.02, 150)[-1] == 0
    assert run_round(schedule, world, 0.95, 600)[-1] == 12


def test_where_drafts_end_early_rounds_without_drafts_say_nothing_and_widths_are_averaged():
    """Lookup in a batch of 8: every other round has no match and costs as much as a plain one, and in the
    others two rows have drafts while all of them are as wide."""
    schedule = Goodput(early=True)
    spent = 0.0
    for number in range(150):
        gamma = schedule.choose()
        matched = bool(gamma) and number % 2 == 0
        judged, kept = (2 * gamma, gamma) if matched else (0, 0)
        cost = 1 + 0.3 * gamma if matched else 1.0
        schedule.learn(Poll(gamma, 1, 8, judged, kept, cost))
        spent += cost - kept / 8  # what the tokens of drafts save
    assert spent <= 150 / 0.97 and schedule.choose() == 0


def test_longer_drafts_than_at_first_do_not_make_plain_rounds_look_dear():
    """Drafts of one token at first and of eight later; plain rounds take 1, and stay the better ones."""
    schedule, chosen = Goodput((0, 4, 8), early=True), []
    for number in range(400):
        gamma = schedule.choose()
        width = min(gamma, 1 if number < 20 else 8 - number % 3)
        chosen.append(gamma)
        poll = Poll(gamma, 1, 8, 8 * bool(gamma), round(3.2 * bool(gamma)), 1 + 0.2 * width)
        schedule.learn(replace(poll, width=float(width)))
    assert schedule.costs.seconds[0] == pytest.approx(1.0, rel=0.05)
    assert chosen.count(0) > 300


@pytest.mark.parametrize(
    ("reading", "known", "drafts"),
    [
        (0.0, False, True),
        (2.0, False, True),
        (12.0, False, False),
        (0.3, True, True),
        (2.0, True, True),
        (12.0, True, False),
        (40.0, True, False),
    ],
)
def test_what_reading_a_prompt_costs_counts(reading, known, drafts):
    """Eight rows, requests of 50 tokens. Of 50 plain rounds drafts save the time of 20, or 2.5 for each
    of eight requests: a prompt that takes as long as 2 rounds is worth that, one of 12 is not. Where it is
    `known` beforehand no trial costs more than it may bring, from the first round on."""
    schedule, alpha, world = Goodput(), 0.8, costs(0.15, 0.1)
    written, unread, spent, plain = [6.0 * row for row in range(8)], 8, 0.0, 0.0
    admitted, worst = 8, 1.0
    for number in range(3000):
        if known and admitted:
            schedule.work.expect(admitted, reading * admitted, 50 * admitted, 0.0)
        gamma = schedule.choose()
        read, unread = (unread, 0) if gamma else (0, unread)
        tokens = expected_tokens(alpha, gamma)
        kept, judged = tokens - 1, (tokens - alpha**gamma) if gamma else 0.0
        poll = Poll(gamma, 1, 8, round(8 * judged), round(8 * kept), world[gamma])
        schedule.learn(replace(poll, admitted=admitted, read=read, reading_s=reading * read))
        written = [w + tokens for w in written]
        admitted = sum(w >= 50 for w in written)
        written = [0.0 if w >= 50 else w for w in written]
        unread = min(8, unread + admitted)
        if known or number >= 100:  # the first rounds measure
            spent, plain = spent + world[gamma] + reading * read, plain + tokens * world[0]
            worst = min(worst, plain / spent)
    assert bool(schedule.best()) is drafts
    assert spent <= plain / 0.98
    if known:
        assert worst >= 0.97


def test_polls_without_rows_or_time_do_no_lasting_harm():
    """All rows ended within their guesses; a clock did not advance."""
    schedule = Goodput()
    schedule.learn(Poll(0, 1, 0, 0, 0, 1.0, admitted=1))
    schedule.learn(Poll(1, 5, 0, 0, 0, 5.35, admitted=5, read=5, reading_s=1.0))
    schedule.learn(Poll(0, 5, 5, 0, 0, 0.0))
    assert run_round(schedule, costs(0.05, 0.02), 0.9, 600)[-1] == 12


class Costly(TinyModel):
    """A draft that takes its time, on a clock of its own."""

    def __init__(self, clock: list[float], seconds: float, **options) -> None:
        super().__init__(**options)
        self.clock, self.seconds = clock, seconds

    def score(self, *args, **kwargs):
        self.clock[0] += self.seconds
        return super().score(*args, **kwargs)


@pytest.mark.parametrize(("cost", "blur", "drafts"), [(0.02, 0.0, True), (0.9, 3.0, False)])
def test_an_engine_drafts_where_it_pays_and_the_text_never_changes(cost, blur, drafts, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    target = Costly(clock, 1.0)
    engine = Engine(
        target,
        ModelDrafter(Costly(clock, cost, blur=blur)),
        batch=2,
        eos=(99,),
        schedule=Goodput((0, 2, 4)),
    )
    requests = [Request(prompt=(1, n), tag=n) for n in range(2, 9)]
    for result in engine.run(requests):
        expected = decode(
            lambda t: TinyModel().forward(t), result.request, eos=(99,), max_tokens=48
        )
        assert result.tokens == expected
    last = engine.schedule.best()
    assert last == (4 if drafts else 0)
    assert isinstance(engine.rows, Rows)
