"""What a round may commit."""

from __future__ import annotations

import pytest
import torch

from forescribe.speculative.rounds.choice import Choice
from forescribe.speculative.rounds.round import Parts, checked, commit, match
from forescribe.speculative.rows import Counters, Rows
from forescribe.speculative.types import Draft
from tests.speculative.tiny import TinyModel

NEVER = 99  # an end-of-text that no model here can write


def rows_with_room(rooms: list[int], gamma: int) -> Rows:
    """Active rows of four tokens, with room for so many more."""
    rows = Rows.empty(len(rooms), 24, torch.device("cpu"))
    rows.lengths.fill_(4)
    rows.limits.copy_(rows.lengths + torch.tensor(rooms))
    rows.active.fill_(True)
    rows.gamma.fill_(gamma)
    return rows


def parts_for(rows: Rows) -> Parts:
    target = TinyModel()
    target.allocate(rows.batch, 25)
    return Parts(target, None, (), torch.tensor([NEVER]))


def test_a_round_commits_up_to_the_limit_of_a_row_and_no_further():
    """Every draft is what the target would write."""
    depth = width = 4
    rooms = [1, 2, 3, 4, 5, 9]
    rows = rows_with_room(rooms, gamma=width)
    parts, counters = parts_for(rows), Counters.zeros(width, torch.device("cpu"))
    tokens = torch.full((rows.batch, width), 3)
    draft = checked(rows, parts, Draft(tokens, torch.full((rows.batch,), width)), width)
    assert draft.valid.tolist() == [min(depth, room - 1) for room in rooms]
    choice = torch.full((rows.batch, width + 1), 3)
    verdict = match(draft, choice)
    commit(rows, parts, draft, Choice(choice, choice.float()), verdict, counters)
    assert (rows.lengths - 4).tolist() == [min(depth + 1, room) for room in rooms]
    assert rows.active.tolist() == [room > depth + 1 for room in rooms]
    assert bool((rows.tokens[torch.arange(rows.batch), rows.limits] == 0).all())


@pytest.mark.parametrize("strange", [-1, 11, 2**40])
def test_drafts_count_up_to_the_first_token_that_the_target_does_not_have(strange):
    """The target reads a known token there."""
    rows = rows_with_room([9, 9, 9], gamma=3)
    parts = parts_for(rows)
    tokens = torch.tensor([[3, 4, 5], [3, strange, 5], [strange, 4, 5]])
    found = checked(rows, parts, Draft(tokens, torch.full((3,), 3)), 3)
    assert found.valid.tolist() == [3, 1, 0]
    assert torch.equal(found.tokens[tokens != strange], tokens[tokens != strange])
    assert bool(((found.tokens >= 0) & (found.tokens < 11)).all())
