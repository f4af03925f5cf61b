"""Sampled texts of several rounds, through the engine: the target's own distribution, and one text a seed."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from benchmarks.quality import sampling
from benchmarks.quality.sampling import (
    DRAFTERS,
    SAMPLINGS,
    Outcome,
    engine,
    measure,
    requests,
)
from forescribe.speculative.rounds import sampling as noise

TEXTS = 1000  # of each kind


def holds(outcome: Outcome) -> bool:
    """Every kind of sampling fits, over texts that took several rounds and drafts of both outcomes."""
    assert [fit.sampling for fit in outcome.fits] == list(SAMPLINGS)
    assert all(fit.degrees > 15 for fit in outcome.fits)
    assert outcome.rounds_per_text > 1.3
    assert 0.1 < outcome.acceptance_rate < 0.9
    return outcome.holds


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_sampled_texts_follow_the_targets_distribution(drafter):
    assert holds(measure(drafter, 4, texts=TEXTS))


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [1, 2])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_sampled_texts_follow_the_targets_distribution_with_shorter_drafts(drafter, gamma):
    assert holds(measure(drafter, gamma, texts=TEXTS))


def test_texts_that_end_early_follow_it_too():
    """End-of-text among the drafts and behind them."""
    outcome = measure("model", 4, texts=3000, names=["plain", "all"], eos=0)
    assert outcome.holds
    assert all(fit.degrees > 10 for fit in outcome.fits)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_sampled_text_does_not_depend_on_drafts_or_on_who_shares_the_batch(drafter):
    work = list(requests(tuple(SAMPLINGS), 10))

    def texts(drafter: str | None, gamma: int, batch: int) -> dict[int, tuple[int, ...]]:
        made = engine(drafter, gamma, batch=batch)
        return {r.request.seed: r.tokens for r in made.run(work)}

    plain = texts(None, 0, 1)
    assert len(set(plain.values())) > 20
    assert texts(drafter, 4, 1) == texts(drafter, 1, 7) == texts(drafter, 2, 60) == plain


def test_the_test_fails_where_slots_share_their_noise():
    """The tokens of a text are then no independent draws."""
    keys = noise._keys

    def shared(seed: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        return keys(seed, torch.zeros_like(slots))

    with mock.patch.object(noise, "_keys", shared):
        outcome = measure("model", 4, texts=TEXTS)
    assert not outcome.holds and not outcome.others


def test_an_impossible_text_never_fits():
    wanted = {(0,): 0.25, (1,): 0.75, (2,): 0.0}
    assert sampling._fit(sampling.Counter({(0,): 250, (1,): 750}), wanted)[2] > 0.9
    assert sampling._fit(sampling.Counter({(0,): 250, (1,): 749, (2,): 1}), wanted)[2] == 0
    assert sampling._fit(sampling.Counter({(0,): 350, (1,): 650}), wanted)[2] < 1e-9
