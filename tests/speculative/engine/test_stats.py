"""Counts of two stretches of decoding add and subtract; their rates follow."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.speculative.rows import Counters
from forescribe.speculative.stats import Stats

counts = st.integers(0, 1000)
stretches_of_decoding = st.builds(
    lambda depths, **others: Stats(
        drafted_at_depth=tuple(d for d, _ in depths),
        accepted_at_depth=tuple(a for _, a in depths),
        **others,
    ),
    depths=st.lists(st.tuples(counts, counts), max_size=4),
    rounds=counts,
    row_rounds=counts,
    emitted=counts,
    target_forwards=counts,
    draft_forwards=counts,
    seconds=st.dictionaries(st.sampled_from(["audio", "draft", "score"]), st.integers(0, 9)),
)

ONE = Stats(
    rounds=10,
    row_rounds=20,
    emitted=44,
    drafted_at_depth=(20, 16),
    accepted_at_depth=(16, 8),
    target_forwards=11,
    draft_forwards=21,
    seconds={"draft": 1.0, "score": 2.0},
)


def test_rates_follow_from_the_counts() -> None:
    assert (ONE.drafted, ONE.accepted) == (36, 24)
    assert ONE.acceptance_rate == 24 / 36
    assert ONE.mean_acceptance_length == 1 + 24 / 20  # the target's own token included
    assert ONE.acceptance_at_depth == (16 / 20, 8 / 16)


def test_nothing_decoded_has_rates_of_zero() -> None:
    nothing = Stats(drafted_at_depth=(0, 0), accepted_at_depth=(0, 0))
    assert nothing.acceptance_rate == nothing.mean_acceptance_length == 0.0
    assert nothing.acceptance_at_depth == (0.0, 0.0)


def test_a_sum_has_the_counts_of_both() -> None:
    other = Stats(rounds=1, drafted_at_depth=(3, 2, 1), accepted_at_depth=(1, 1, 1))
    both = ONE + other + Stats(seconds={"audio": 3.0, "draft": 0.5})
    assert (both.rounds, both.drafted_at_depth) == (11, (23, 18, 1))
    assert both.accepted_at_depth == (17, 9, 1)
    assert both.seconds == {"audio": 3.0, "draft": 1.5, "score": 2.0}


@settings(max_examples=30)
@given(stretches_of_decoding, stretches_of_decoding)
def test_subtraction_undoes_addition(one, other) -> None:
    back, known = (one + other - other).to_dict(), one.to_dict()
    for name in ("rounds", "row_rounds", "emitted", "target_forwards", "draft_forwards"):
        assert back[name] == known[name]
    for name in ("drafted", "accepted"):
        assert back[name] == known[name]
    assert {s: t for s, t in back["seconds"].items() if t} == {
        s: t for s, t in one.seconds.items() if t
    }


@settings(max_examples=30)
@given(stretches_of_decoding, stretches_of_decoding)
def test_addition_has_no_order(one, other) -> None:
    assert one + other == other + one


def test_the_record_is_json() -> None:
    record = json.loads(json.dumps(ONE.to_dict()))
    assert record["acceptance_rate"] == ONE.acceptance_rate
    assert record["accepted_at_depth"] == [16, 8]
    assert record["seconds"] == ONE.seconds


def test_counters_count_per_depth_and_active_rows_only() -> None:
    counters = Counters.zeros(3, torch.device("cpu"))
    counters.add(
        active=torch.tensor([True, True, False]),
        drafted=torch.tensor([3, 1, 0]),
        accepted=torch.tensor([2, 0, 0]),
        emitted=torch.tensor([3, 1, 0]),
    )
    assert counters.drafted.tolist() == [2, 1, 1]
    assert counters.accepted.tolist() == [1, 1, 0]
    assert (int(counters.row_rounds), int(counters.emitted)) == (2, 4)


def test_a_stretch_is_not_changed_by_arithmetic() -> None:
    before = ONE.to_dict()
    assert (ONE + ONE).rounds == 20 and (ONE - ONE).rounds == 0
    assert ONE.to_dict() == before
    with pytest.raises(AttributeError):
        ONE.rounds = 3  # type: ignore[misc]
