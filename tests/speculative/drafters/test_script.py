"""Script drafts: what is proposed where, and that no script changes a token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from forescribe.speculative import Engine, Fixed, Request
from forescribe.speculative.drafters.script import BELIEVED, LOST_AFTER, Breaks, ScriptDrafter
from forescribe.speculative.rows import Rows
from forescribe.speculative.types import Draft
from tests.speculative.tiny import TinyModel

EOS, SPECIAL = 10, 100


def rows_of(*answers: list[int], prompt: int = 1) -> Rows:
    """Active rows with a prompt of special tokens and these answers."""
    rows = Rows.empty(len(answers), 60, torch.device("cpu"))
    for row, answer in enumerate(answers):
        text = torch.tensor([SPECIAL] * prompt + answer)
        rows.tokens[row, : len(text)] = text
        rows.begin[row], rows.lengths[row], rows.active[row] = prompt, len(text), True
    return rows


def drafter_of(*scripts: list[int], **options: int) -> ScriptDrafter:
    drafter = ScriptDrafter(special_from=SPECIAL, **options)
    drafter.allocate(len(scripts), 60, torch.device("cpu"))
    work = [Request((SPECIAL,), hint=tuple(script)) for script in scripts]
    drafter.admit(torch.arange(len(scripts)), torch.tensor([[SPECIAL]]), work, None)
    return drafter


def proposed(draft: Draft) -> list[list[int]]:
    return [row[:n].tolist() for row, n in zip(draft.tokens, draft.valid.tolist(), strict=True)]


def test_it_begins_with_the_script_and_goes_on_behind_what_agrees():
    drafter = drafter_of([1, 2, 3, 4, 5, 6])
    assert proposed(drafter.propose(rows_of([]), 4)) == [[1, 2]]  # nothing agrees yet
    assert proposed(drafter.propose(rows_of([1]), 5)) == [[2, 3, 4, 5]]
    assert proposed(drafter.propose(rows_of([1, 2, 3]), 5)) == [[4, 5, 6]]
    assert proposed(drafter.propose(rows_of([1, 2, 3, 4, 5, 6]), 3)) == [[]]


@pytest.mark.parametrize(
    ("answer", "following"),
    [
        ([1, 2, 3, 90], [5, 6]),  # a replaced token: offset 1, of which little is believed
        ([1, 2, 3, 90, 4], [5, 6, 7, 8]),  # an added one: offset 0
        ([1, 2, 3, 5], [6, 7, 8, 9]),  # one left out: offset 2
        ([1, 2, 3, 90, 91, 6], [7, 8, 9]),  # found again by the next one that agrees
    ],
)
def test_it_goes_on_after_a_correction(answer, following):
    drafter = drafter_of([1, 2, 3, 4, 5, 6, 7, 8, 9])
    drafter.propose(rows_of([1, 2, 3]), 4)
    assert proposed(drafter.propose(rows_of(answer), 4)) == [following]


def test_one_agreeing_token_suffices_near_the_expected_place_only():
    script = [1, 2, 3, *range(20, 50), 7, 8]
    near, far = drafter_of(script), drafter_of(script)
    near.propose(rows_of([1, 2, 3]), 4)
    assert proposed(near.propose(rows_of([1, 2, 3, 24]), 3)) == [[25, 26, 27]]
    far.propose(rows_of([1, 2, 3]), 4)
    assert proposed(far.propose(rows_of([1, 2, 3, 7]), 3))[0] != [8]
    assert proposed(far.propose(rows_of([1, 2, 3, 40, 41]), 3)) == [[42, 43, 44]]


def test_near_counts_more_than_two_tokens_far_away():
    script = [1, 2, 3, 4, 5, 6, *range(20, 40), 9, 5, 70, 71]
    drafter = drafter_of(script)
    drafter.propose(rows_of([1, 2, 3]), 4)
    assert proposed(drafter.propose(rows_of([1, 2, 3, 9, 5]), 2)) == [[6, 20]]


def test_it_stops_where_it_is_lost_and_goes_on_when_found():
    drafter = drafter_of(list(range(1, 40)))
    drafter.propose(rows_of([1, 2]), 4)
    strange = [1, 2] + [80 + n % 3 for n in range(LOST_AFTER + 1)]
    assert proposed(drafter.propose(rows_of(strange[:-1]), 4))[0]
    assert proposed(drafter.propose(rows_of(strange), 4)) == [[]]
    assert proposed(drafter.propose(rows_of([*strange, 20, 21]), 3)) == [[22, 23, 24]]


def test_special_tokens_take_no_part_in_the_alignment():
    stamps = [1, 2, 3, SPECIAL + 7, SPECIAL + 8, 4, 5, 6]
    without, with_ = drafter_of([1, 2, 3, 4, 5, 6]), drafter_of(stamps)
    answer = [SPECIAL + 1, 1, 2, 3, SPECIAL + 2, SPECIAL + 3]
    assert proposed(without.propose(rows_of(answer), 3)) == [[4, 5, 6]]
    assert proposed(with_.propose(rows_of([SPECIAL + 1, 1, 2, 3]), 3)) == [[*stamps[3:6]]]
    assert proposed(with_.propose(rows_of(answer[:-1]), 2)) == [stamps[4:6]]
    assert proposed(with_.propose(rows_of(answer), 3)) == [[4, 5, 6]]
    assert proposed(with_.propose(rows_of([*answer, SPECIAL + 4]), 3)) == [[4, 5, 6]]


def test_rows_have_scripts_of_their_own():
    drafter = drafter_of([1, 2, 3, 4], [], [4, 3, 2, 1])
    assert proposed(drafter.propose(rows_of([1, 2], [1, 2], [4, 3]), 3)) == [[3, 4], [], [2, 1]]


def test_a_script_that_is_too_long_keeps_its_beginning():
    drafter = drafter_of(list(range(1, 90)), slots=8)
    assert proposed(drafter.propose(rows_of([5, 6]), 9)) == [[7, 8]]


def test_asking_twice_gives_the_same_answer():
    """A round that fails is repeated, row by row."""
    drafter = drafter_of(list(range(1, 40)))
    drafter.propose(rows_of([1, 2, 3]), 4)
    rows = rows_of([1, 2, 3, 90])
    assert proposed(drafter.propose(rows, 4)) == proposed(drafter.propose(rows, 4))
    assert len(proposed(drafter.propose(rows, 4))[0]) == BELIEVED[0]


def test_the_right_script_saves_nearly_all_rounds_and_one_with_mistakes_most():
    prompts = [Request((1, 2, n), encoder_states=n, tag=n, max_new_tokens=40) for n in range(8)]

    def run(scripts: dict[int, tuple[int, ...]]) -> Engine:
        work = [replace(r, hint=scripts[r.tag]) for r in prompts]
        engine = Engine(TinyModel(), ScriptDrafter(), batch=3, eos=(99,), schedule=Fixed(6))
        assert {r.request.tag: r.tokens for r in engine.run(work)} == plain
        return engine

    engine = Engine(TinyModel(), batch=3, eos=(99,), schedule=Fixed(0))
    plain = {r.request.tag: r.tokens for r in engine.run(prompts)}
    right = run(plain).stats.mean_acceptance_length
    wrong = {n: (*t[:7], 0, *t[9:20], *t[22:]) for n, t in plain.items()}
    mistaken = run(wrong).stats.mean_acceptance_length
    unrelated = run({n: (5,) * 30 for n in plain}).stats.mean_acceptance_length
    assert right > 5 and mistaken > 3 > unrelated


STOP, STAMP, PLAIN = 50, SPECIAL + 1, SPECIAL + 7
AFTER = torch.arange(STOP + 1) == STOP
SENTENCES = [1, 2, 3, STOP, 11, 12, 13, STOP]


@pytest.mark.parametrize(
    ("answer", "following"),
    [
        ([], []),  # a timestamp comes first
        ([STAMP], [1, 2]),
        ([STAMP, 1, 2], [3, STOP]),  # no further than the end of the sentence
        ([STAMP, 1, 2, 3, STOP], []),
        ([STAMP, 1, 2, 3, STOP, STAMP], []),  # the second timestamp is missing
        ([STAMP, 1, 2, 3, STOP, STAMP, STAMP], [11, 12, 13, STOP]),
        ([STAMP, 1, 2, STAMP], []),  # a break without a mark
        ([STAMP, 1, 2, STAMP, STAMP], [3, STOP]),
        ([STAMP, 1, 2, 3, STOP, 11], [12, 13, STOP]),  # a mark without a break
    ],
)
def test_drafts_end_where_timestamps_follow_that_the_script_lacks(answer, following):
    drafter = drafter_of(SENTENCES, breaks=Breaks(AFTER, none=PLAIN))
    assert proposed(drafter.propose(rows_of(answer), 6)) == [following]


def test_answers_without_timestamps_are_not_broken():
    drafter = drafter_of(SENTENCES, breaks=Breaks(AFTER, none=PLAIN))
    rows = rows_of([1, 2])
    rows.tokens[0, 0] = PLAIN
    assert proposed(drafter.propose(rows, 5)) == [[3, STOP, 11, 12, 13]]


def test_a_script_with_timestamps_of_its_own_is_not_broken():
    drafter = drafter_of([STAMP, 1, 2, STOP, STAMP, STAMP, 11, 12, 13, 14], breaks=Breaks(AFTER))
    assert proposed(drafter.propose(rows_of([]), 2)) == [[STAMP, 1]]
    assert proposed(drafter.propose(rows_of([STAMP, 1, 2]), 5)) == [[STOP, STAMP, STAMP, 11, 12]]
    assert proposed(drafter.propose(rows_of([STAMP, 1, 2, STOP]), 3)) == [[STAMP, STAMP, 11]]
