"""Which tokens are copied, from where, and how wide rounds are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.speculative import Engine, Fixed
from forescribe.speculative.drafters import ngram
from forescribe.speculative.drafters.ngram import NgramDrafter
from forescribe.speculative.requests import Request
from forescribe.speculative.rows import Rows
from tests.speculative.engine.test_engine import Planned
from tests.speculative.tiny import TinyModel

GAMMA = 6
CPU = torch.device("cpu")


def rows_of(texts: list[list[int]], slots: int = 64) -> Rows:
    rows = Rows.empty(len(texts), slots, CPU)
    for row, text in enumerate(texts):
        rows.tokens[row, : len(text)] = torch.tensor(text)
        rows.lengths[row] = len(text)
    rows.active[:] = True
    return rows


def matches(text: list[int], hay: list[int], own: bool) -> tuple[int, list[int]]:
    """What `NgramDrafter` takes from `hay`, token by token: the longest match and what follows it."""
    found = []
    for end in range(len(hay) - own):
        length = 0
        while (
            length < ngram.LONGEST
            and end >= length
            and length < len(text)
            and hay[end - length] == text[-1 - length] != -1
        ):
            length += 1
        if length:
            found.append((min(length, ngram.FIRST), end, length))
    if not found:
        return 0, []
    best = sorted(found, reverse=True)[: ngram.CANDIDATES]
    length, end = max(((n, e) for _, e, n in best), key=lambda match: match[0])
    following = hay[end + 1 :]
    cut = following.index(-1) if -1 in following else len(following)
    return length, following[:cut][:GAMMA]


words = st.lists(st.integers(0, 2), min_size=1, max_size=60)


@settings(max_examples=60)
@given(st.lists(words, min_size=1, max_size=3), st.lists(words, max_size=5))
def test_drafts_follow_the_longest_match_of_own_text_and_earlier_answers(texts, answers):
    drafter = NgramDrafter(answers=4, length=60)
    drafter.allocate(len(texts), 64, CPU)
    for answer in answers:  # each was written by the first row
        drafter._own[0, : len(answer)] = torch.tensor(answer)
        drafter.admit(torch.tensor([0]), torch.zeros(1, 1), [Request((1,))], None)
    draft = drafter.propose(rows_of(texts), GAMMA)
    ring: list[list[int]] = [[]] * 4
    for number, answer in enumerate(answers):
        ring[number % 4] = answer
    kept = [answer + [-1] * (61 - len(answer)) for answer in ring[: len(answers)]]
    for row, text in enumerate(texts):
        length, expected = matches(text, text, own=True)
        other, following = matches(text, [token for answer in kept for token in answer], own=False)
        if other > length:
            expected = following
        assert draft.tokens[row, : draft.valid[row]].tolist() == expected


def engine(answers: int, *, batch: int = 1, early: bool = False) -> Engine:
    drafter = NgramDrafter(answers=answers, early=early)
    return Engine(TinyModel(), drafter, batch=batch, eos=(), schedule=Fixed(GAMMA))


def test_an_answer_is_drafted_from_an_earlier_one():
    """The same question again: all but the first rounds of the second answer are copied from the first."""
    work = [Request((3, 7), max_new_tokens=30, tag=n) for n in range(2)]
    first, second = engine(8).run(work)
    assert first.tokens == second.tokens and second.accepted >= first.accepted + 20


def test_answers_are_noted_in_rounds_without_drafts():
    drafter = NgramDrafter(answers=8)
    made = Engine(TinyModel(), drafter, batch=2, eos=(), schedule=Planned(0, 0, 3))
    work = [Request((3, 7 + n), max_new_tokens=9 + n, tag=n) for n in range(3)]
    texts = {r.request.tag: list(r.tokens) for r in made.run(work)}
    assert drafter._written == 1
    assert drafter._earlier[0, :10].tolist() == [*texts[0], -1]
    ended = [row[row >= 0].tolist() for row in drafter._own]
    assert sorted(ended) == sorted([texts[1], texts[2]])


@pytest.mark.parametrize("earlier", [(), (2, 4), (3, 7)])
def test_a_seeded_text_does_not_depend_on_earlier_answers(earlier):
    made = engine(8)
    if earlier:
        list(made.run([Request(earlier, max_new_tokens=30, seed=1, temperature=0.9)]))
    request = Request((3, 7), max_new_tokens=30, seed=1, temperature=0.9)
    (result,) = made.run([request])
    (expected,) = engine(8).run([request])
    assert result.tokens == expected.tokens


@pytest.mark.parametrize(
    ("texts", "width"),
    [
        ([[5, 1, 2]], 0),  # no match
        ([[1, 8, 9, 4, 1]], 2),  # a match of one token: 0.25, then 0.25 x 0.4
        ([[1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4]], GAMMA),
        ([[1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4], [5], [6], [7]], 4),
    ],
)
def test_a_round_ends_where_its_rows_doubt(texts, width):
    drafter = NgramDrafter(early=True)
    drafter.allocate(len(texts), 64, CPU)
    rows = rows_of(texts)
    assert drafter.propose(rows, GAMMA).tokens.shape[1] == width
