"""Counts of two stretches of decoding add and subtract; their rates follow."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.speculative.requests import Stats

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
