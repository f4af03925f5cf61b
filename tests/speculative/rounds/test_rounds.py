"""Sampled texts over several rounds: their exact joint distribution, random numbers integrated out."""

from __future__ import annotations

import pytest

from forescribe.speculative.rounds.accept import BlockVerification, TokenRejection
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
