"""Simulated rounds are those of greedy matching, and prices decide."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.distill.report import Evaluation, Prices, agreement, tokens_per_round
from forescribe.distill.training import Progress


@given(
    traces=st.lists(st.lists(st.booleans(), min_size=1, max_size=40), min_size=1, max_size=3),
    gamma=st.integers(1, 8),
)
def test_rounds_are_those_of_matching_drafts_one_by_one(
    traces: list[list[bool]], gamma: int
) -> None:
    rounds = 0
    for matches in traces:
        left = list(matches)
        while left:
            drafts, left = left[:gamma], left[gamma:]
            rounds += 1
            if False in drafts:  # the target's own token stands in its place
                left = drafts[drafts.index(False) + 1 :] + left
            else:
                left = left[1:]
    assert tokens_per_round(traces, gamma) == sum(map(len, traces)) / rounds


def test_agreement_is_the_mean_over_tokens_not_over_rows() -> None:
    assert agreement([[True, True, True], [False]]) == 0.75
    assert agreement([]) == 0


def test_the_gamma_that_gains_most_per_second_is_chosen() -> None:
    traces = [[True, True, False] * 20]
    cheap = Prices({0: 1.0, 2: 1.2, 8: 3.0})
    assert cheap.gain(traces) == (pytest.approx(3 / 1.2), 2)
    dear = Prices({0: 1.0, 2: 4.0, 8: 9.0})
    assert dear.gain(traces) == (1.0, 0)  # drafts do not pay


@pytest.mark.parametrize(
    ("prices", "said"),
    [
        ({0: 1.0, 2: 1.75, 4: 4.0}, "rate of 0.50 on, at gamma 2"),  # 1 + 0.5 + 0.25 tokens
        ({0: 2.0, 2: 6.0}, "rate of 1.00 on, at gamma 2"),  # as long as three plain rounds
        ({0: 1.0, 2: 3.1, 4: 5.5}, "no draft of this shape can pay"),
        ({0: 1.0, 2: 0.9}, "no acceptance rate can be named"),
    ],
)
def test_drafts_pay_where_a_round_writes_as_much_as_plain_rounds_in_its_time(
    prices: dict[int, float], said: str
) -> None:
    assert said in Prices(prices).verdict()


def test_of_equal_gains_the_draft_that_agrees_most_is_chosen_and_of_equals_the_first() -> None:
    """A draft that is too weak to pay at any gamma has a gain of 1 throughout its training."""
    figures = [(0, 1.0, 0.1), (10, 1.0, 0.3), (20, 1.0, 0.3), (30, 1.0, 0.2)]
    state = Progress(evaluations=[Evaluation(s, s, gain, 0, agree) for s, gain, agree in figures])
    assert state.chosen.step == 10
    state.evaluations.append(Evaluation(40, 40, 1.01, 2, 0.2))
    assert state.chosen.step == 40
