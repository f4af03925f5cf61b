"""Simulated rounds are those of greedy matching, and decide."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forescribe.distill.report import Evaluation, agreement, tokens_per_round
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


def test_the_draft_that_writes_most_per_round_is_chosen_and_of_equals_the_first() -> None:
    figures = [(0, 1.5, 0.3), (10, 2.0, 0.3), (20, 2.0, 0.4), (30, 2.0, 0.4)]
    state = Progress(evaluations=[Evaluation(s, s, tokens, agree) for s, tokens, agree in figures])
    assert state.chosen.step == 20
    state.evaluations.append(Evaluation(40, 40, 2.1, 0.2))
    assert state.chosen.step == 40
