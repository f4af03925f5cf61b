"""Slots, the queue before them, and what the drafter still has to read."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forescribe.speculative.engine.slots import Inbox, RequestQueue, Slots, SlotState
from forescribe.speculative.errors import DecodingError
from forescribe.speculative.requests import Request
from forescribe.speculative.rows import Rows

BATCH, TOKENS = 3, 20


def slots() -> Slots:
    return Slots(Rows.empty(BATCH, TOKENS, torch.device("cpu")))


def state(length: int = 1, tag: object = None, guess: tuple[int, ...] = ()) -> SlotState:
    return SlotState(Request((1,) * length, guess=guess, tag=tag), Inbox())


def error() -> DecodingError:
    return DecodingError("planted", RuntimeError())


def test_rows_whose_drafter_failed_run_apart_from_the_others():
    held = slots()
    for row in range(BATCH):
        held.occupy(row, state(), prefill_pending=False)
    assert held.groups(4) == [([0, 1, 2], 4, True)]
    held.stop_drafting(1, error())
    assert held.groups(4) == [([0, 2], 4, True), ([1], 0, False)]
    assert held.groups(0) == [([0, 1, 2], 0, False)]
    for row in (0, 2):
        held.stop_drafting(row, error())
    assert held.groups(4) == [([0, 1, 2], 0, False)]


def test_rows_whose_drafter_failed_are_not_observed_in_rounds_without_drafts():
    held = Slots(Rows.empty(BATCH, TOKENS, torch.device("cpu")), observed=True)
    for row in range(BATCH):
        held.occupy(row, state(), prefill_pending=False)
    assert held.groups(0) == [([0, 1, 2], 0, True)]
    held.stop_drafting(1, error())
    assert held.groups(0) == [([0, 2], 0, True), ([1], 0, False)]
    held.count_round(0)
    assert held.unread_tokens == 0  # nothing to catch up with


def test_a_guess_counts_as_growth_until_its_length_is_read():
    held = slots()
    held.occupy(0, state(4, guess=(1, 2, 3)), prefill_pending=False)
    assert held.longest == 4 + 3 + 1 and held.lengths[0] == 4
    held.measure(0)
    assert held.longest == 4 + 3 + 1
    held.note_lengths([6, 1, 1], dict(held.occupied))
    held.measure(held.grown)
    assert held.longest == 6


def test_masked_to_masks_the_other_rows_and_puts_them_back_after_an_exception():
    held = slots()
    held.rows.active[:2] = True
    with pytest.raises(ZeroDivisionError), held.masked_to([1, 2]):
        assert held.rows.active.tolist() == [False, True, False]
        held.rows.active[1] = False  # ends in its round
        1 / 0  # noqa: B018
    assert held.rows.active.tolist() == [True, False, False]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("occupy"), st.integers(1, 9)),
        st.tuples(st.just("vacate"), st.integers(0, BATCH - 1)),
        st.tuples(st.just("round"), st.sampled_from([0, 0, 3])),
        st.tuples(st.just("read"), st.just(0)),
    ),
    max_size=30,
)


@given(steps)
def test_unread_prompts_are_of_occupied_slots_and_unread_tokens_never_too_few(work):
    """The invariants of `Slots`, against a record of every single row."""
    held, lengths, unread = slots(), {}, {}
    for action, number in work:
        if action == "occupy" and held.free():
            row = held.free()[0]
            held.occupy(row, state(number), prefill_pending=True)
            lengths[row], unread[row] = number, 0
        elif action == "vacate" and number in lengths:
            held.vacate(number)
            del lengths[number], unread[number]
        elif action == "round":
            held.count_round(number)
            for row in lengths:
                lengths[row] = min(lengths[row] + number + 1, TOKENS)
                unread[row] += number == 0
        elif action == "read":
            held.unread_prompts, held.unread_tokens = {}, 0
            unread = dict.fromkeys(unread, 0)
        assert held.unread_prompts.keys() <= lengths.keys()
        assert all(n <= held.unread_tokens for n in unread.values())
        assert all(n <= held.longest <= TOKENS for n in lengths.values())


def test_requests_of_a_queue_belong_to_the_inbox_that_it_was_turned_to():
    queue, other = RequestQueue(), Inbox()
    queue.put(Request((1,), tag="a"))
    queue.turn_to(other)
    queue.put(Request((1,), tag="b"))
    assert (queue.own.pending, other.pending) == (1, 1)
    queue.abandon(other)
    assert list(queue.take_abandoned()) == [other]
    queue.put(Request((1,), tag="c"))  # an abandoned inbox gets no more of them
    assert (queue.own.pending, other.pending) == (2, 1)
    assert queue.remove(lambda s: s.inbox is other) == 1 and other.pending == 0
    assert [s.request.tag for s in queue.take(5)] == ["a", "c"]
