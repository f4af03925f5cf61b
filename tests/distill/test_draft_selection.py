"""Simulated rounds: they are those of greedy matching and of drawn acceptance, and prices decide."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.distill.report import Prices, Trace, agreement, simulated, tokens_per_round
from forescribe.distill.training import Evaluation, Progress
from forescribe.speculative.engine.schedule import expected_tokens


def greedy(*accepted: int) -> Trace:
    return Trace(tuple(float(a) for a in accepted), True, "own")


@given(matches=st.lists(st.booleans(), min_size=1, max_size=40), gamma=st.integers(1, 8))
def test_greedy_rounds_are_those_of_matching_drafts_one_by_one(
    matches: list[bool], gamma: int
) -> None:
    rounds, place = 0, 0
    while place < len(matches):
        kept = 0
        while kept < gamma and place + kept < len(matches) and matches[place + kept]:
            kept += 1
        place, rounds = place + kept + 1, rounds + 1
    assert simulated(greedy(*map(int, matches)), gamma) == (len(matches), rounds)


def test_drawn_rounds_have_the_mean_of_a_simulation() -> None:
    rng = random.Random(3)
    accepted = tuple(rng.uniform(0.3, 1) for _ in range(4000))
    tokens, rounds = simulated(Trace(accepted, False, "own"), 4)
    place = played = 0
    while place < len(accepted):
        for probability in accepted[place : place + 4]:
            if rng.random() >= probability:
                break
            place += 1
        place, played = place + 1, played + 1
    assert tokens / rounds == pytest.approx(len(accepted) / played, rel=0.05)


@given(alpha=st.floats(0, 1), gamma=st.integers(1, 8))
def test_equal_probabilities_give_the_formula_of_the_paper(alpha: float, gamma: int) -> None:
    trace = Trace((alpha,) * 400, False, "own")
    assert tokens_per_round([trace], gamma) == pytest.approx(
        expected_tokens(alpha, gamma), rel=0.02
    )


def test_agreement_is_the_mean_over_tokens_not_over_rows() -> None:
    assert agreement([greedy(1, 1, 1), greedy(0)]) == 0.75
    assert agreement([]) == 0


def test_the_gamma_that_gains_most_per_second_is_chosen() -> None:
    traces = [greedy(*(1, 1, 0) * 20)]
    cheap = Prices({0: 1.0, 2: 1.2, 8: 3.0})
    assert cheap.gain(traces) == (pytest.approx(3 / 1.2), 2)
    dear = Prices({0: 1.0, 2: 4.0, 8: 9.0})
    assert dear.gain(traces) == (1.0, 0)  # drafts do not pay


@pytest.mark.parametrize(
    ("prices", "rate", "gamma"),
    [
        ({0: 1.0, 2: 1.75, 4: 4.0}, 0.5, 2),  # 1 + 0.5 + 0.25 tokens
        ({0: 2.0, 2: 6.0}, 1.0, 2),  # as long as three plain rounds
    ],
)
def test_break_even_is_where_a_round_writes_as_many_tokens_as_plain_rounds_in_its_time(
    prices: dict[int, float], rate: float, gamma: int
) -> None:
    made = Prices(prices)
    assert made.break_even() == (pytest.approx(rate, abs=1e-6), gamma)
    assert f"rate of {rate:.2f} on, at gamma {gamma}" in made.verdict()


def test_a_shape_whose_rounds_cost_more_than_its_tokens_cannot_pay() -> None:
    dear = Prices({0: 1.0, 2: 3.1, 4: 5.5})
    assert dear.break_even() is None
    assert "no draft of this shape can pay" in dear.verdict()


def test_times_that_cannot_be_are_not_called_a_price() -> None:
    disturbed = Prices({0: 1.0, 2: 0.9})
    assert disturbed.break_even() == (pytest.approx(0, abs=1e-6), 2)
    assert "no acceptance rate can be named" in disturbed.verdict()


def test_prices_are_written_in_milliseconds() -> None:
    assert Prices({4: 0.002, 0: 0.001}).to_json() == {"0": 1.0, "4": 2.0}


def test_of_equal_gains_the_draft_that_agrees_most_is_chosen_and_of_equals_the_first() -> None:
    """A draft that is too weak to pay at any gamma has a gain of 1 throughout its training."""
    figures = [(0, 1.0, 0.1), (10, 1.0, 0.3), (20, 1.0, 0.3), (30, 1.0, 0.2)]
    state = Progress(evaluations=[Evaluation(s, s, gain, 0, agree) for s, gain, agree in figures])
    assert state.chosen.step == 10
    state.evaluations.append(Evaluation(40, 40, 1.01, 2, 0.2))
    assert state.chosen.step == 40
