"""Sampled texts over several rounds: their exact joint distribution, random numbers integrated out; and what
a round may commit."""

from __future__ import annotations

import pytest
import torch

from forescribe.speculative.requests import Mode
from forescribe.speculative.rounds.accept import BlockVerification, GreedyMatch, TokenRejection
from forescribe.speculative.rounds.choice import Choice
from forescribe.speculative.rounds.round import Parts, checked, commit, run_round
from forescribe.speculative.rows import Counters, Rows
from forescribe.speculative.testing import TinyModel
from forescribe.speculative.types import Draft
from tests.speculative.rounds.enumeration import (
    DRAFT_DISTRIBUTIONS,
    Chance,
    Joint,
    decoded_joint,
    distributions,
    joint,
    keys_of_round,
)

RULES = [TokenRejection, BlockVerification]
TWO = [[0.5, 0.5], [0.25, 0.75], [0.875, 0.125]]

# Vocabulary, drafts per round, tokens of the text: all of one token per round, or of many.
SIZES = [(2, 1, 4), (2, 2, 5), (2, 3, 4), (3, 2, 3)]


def chance(rule: type, size: tuple[int, int, int], *, dense: bool, seed: int = 0) -> Chance:
    vocab, gamma, length = size
    p = distributions(seed, length + gamma, None, vocab)
    q = None
    if dense:
        q = distributions(
            seed + 100, length + gamma, TWO if vocab == 2 else DRAFT_DISTRIBUTIONS, vocab
        )
    # A lookup's draft: some function of the text alone.
    return Chance(
        rule, p, q, gamma, vocab,
        fixed=lambda text: tuple((sum(text) + len(text) + i) % vocab for i in range(gamma)),
    )  # fmt: skip


def distance(found: Joint, expected: Joint) -> float:
    """Total variation."""
    return sum(abs(found.get(text, 0.0) - p) for text, p in expected.items()) / 2


@pytest.mark.parametrize("dense", [True, False], ids=["dense draft", "one-hot draft"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_a_text_of_several_rounds_follows_the_targets_distribution(rule, size, dense):
    made = chance(rule, size, dense=dense)
    found, rounds = decoded_joint(made, size[2])
    assert rounds >= 3
    assert sum(found.values()) == pytest.approx(1, abs=1e-10)
    assert distance(found, joint(made.p, size[2] - 1, size[0])) < 1e-10


def shared_by_slot(key):
    """A key without the start of the round: what a slot's draws were keyed by would then be reused."""
    return (0, *key[1:])


@pytest.mark.parametrize("size", [(2, 2, 5), (3, 2, 3)], ids=str)
def test_block_verification_needs_random_numbers_of_its_own_in_each_round(size):
    """The enumeration sees what a shared number does, so that it can fail."""
    made = chance(BlockVerification, size, dense=True)
    found, _ = decoded_joint(made, size[2], keep=shared_by_slot)
    assert sum(found.values()) == pytest.approx(1, abs=1e-10)
    assert distance(found, joint(made.p, size[2] - 1, size[0])) > 0.01


@pytest.mark.parametrize("rule", RULES)
def test_no_round_reads_a_random_number_of_an_earlier_one(rule):
    read: set = set()
    for start in range(1, 12):
        keys = keys_of_round(rule, start, 4)
        here = {*keys.draft, *keys.accept, *keys.extra}
        assert len(here) == 4 + 4 + 5
        assert not here & read
        read |= here


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
    return Parts(target, None, GreedyMatch(), (), torch.tensor([NEVER]))


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
    verdict = GreedyMatch().match(draft, choice)
    commit(rows, parts, draft, Choice(choice, choice.float()), verdict, counters)
    assert (rows.lengths - 4).tolist() == [min(depth + 1, room) for room in rooms]
    assert rows.active.tolist() == [room > depth + 1 for room in rooms]
    assert bool((rows.tokens[torch.arange(rows.batch), rows.limits] == 0).all())


@pytest.mark.parametrize("penalised", [False, True])
def test_every_stage_of_a_round_ends_once_in_order(penalised):
    """Of one that needs the best tokens alone, and of one that needs all logits."""
    rows = rows_with_room([3, 3], gamma=0)
    rows.mode = Mode(penalised=penalised)
    parts = parts_for(rows)
    assert parts.choose is not None
    stages: list[str] = []
    run_round(rows, parts, 0, Counters.zeros(1, torch.device("cpu")), stages.append)
    assert stages == ["draft", "score", "rule", "observe", "accept"]


@pytest.mark.parametrize("strange", [-1, 11, 2**40])
def test_drafts_count_up_to_the_first_token_that_the_target_does_not_have(strange):
    """A dense draft has no probability for such a token, so that another one in its place would be accepted
    for certain. The target reads a known token there."""
    rows = rows_with_room([9, 9, 9], gamma=3)
    parts = parts_for(rows)
    tokens = torch.tensor([[3, 4, 5], [3, strange, 5], [strange, 4, 5]])
    probs = torch.full((3, 3, 11), 1 / 11)
    found = checked(rows, parts, Draft(tokens, torch.full((3,), 3), probs), 3)
    assert found.valid.tolist() == [3, 1, 0]
    assert torch.equal(found.tokens[tokens != strange], tokens[tokens != strange])
    assert bool(((found.tokens >= 0) & (found.tokens < 11)).all())
