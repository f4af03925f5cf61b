"""Sampled texts of several rounds, through the engine, follow the target's own distribution."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from benchmarks.quality import sampling
from benchmarks.quality.sampling import (
    DRAFTERS,
    RULES,
    SAMPLINGS,
    Outcome,
    engine,
    measure,
    requests,
)
from forescribe.speculative.requests import Guarantee
from forescribe.speculative.rounds import accept
from forescribe.speculative.rounds.accept import uniform
from forescribe.speculative.types import Distribution
from tests.speculative.rounds import test_rounds

TEXTS = 1000  # of each kind


def holds(outcome: Outcome) -> bool:
    """Every kind of sampling fits, over texts that took several rounds and drafts of both outcomes."""
    assert [fit.sampling for fit in outcome.fits] == list(SAMPLINGS)
    assert all(fit.degrees > 15 for fit in outcome.fits)
    assert outcome.rounds_per_text > 1.3
    assert 0.1 < outcome.acceptance_rate < 0.9
    return outcome.holds


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("rule", RULES)
def test_sampled_texts_follow_the_targets_distribution(rule, drafter):
    assert holds(measure(rule, drafter, 4, texts=TEXTS))


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [1, 2])
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("rule", RULES)
def test_sampled_texts_follow_the_targets_distribution_with_shorter_drafts(rule, drafter, gamma):
    assert holds(measure(rule, drafter, gamma, texts=TEXTS))


@pytest.mark.parametrize("rule", RULES)
def test_texts_that_end_early_follow_it_too(rule):
    """End-of-text among the drafts and behind them."""
    outcome = measure(rule, "model", 4, texts=3000, names=["plain", "all"], eos=0)
    assert outcome.holds
    assert all(fit.degrees > 10 for fit in outcome.fits)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("rule", RULES)
def test_a_sampled_text_does_not_depend_on_who_shares_the_batch(rule, drafter):
    work = list(requests(tuple(SAMPLINGS), 10))

    def texts(batch: int) -> dict[int, tuple[int, ...]]:
        made = engine(rule, drafter, 4, batch=batch)
        return {r.request.seed: r.tokens for r in made.run(work)}

    alone = texts(1)
    assert len(set(alone.values())) > 20
    assert texts(7) == texts(60) == alone


def test_every_rule_that_claims_to_be_exact_is_tested_over_several_rounds():
    rules = [
        made
        for made in vars(accept).values()
        if getattr(made, "__module__", "") == accept.__name__
        and hasattr(made, "guarantee")
        and made is not accept.RuleChoice
    ]
    exact = {
        made for made in rules
        if not made.__name__.startswith("_")
        and any(made().guarantee(kind) is Guarantee.EXACT for kind in Distribution)
    }  # fmt: skip
    assert exact == set(RULES.values()) == set(test_rounds.RULES)


def test_the_test_fails_if_rounds_share_random_numbers():
    """The test can fail: block verification with numbers that belong to the slot alone."""

    def by_slot(seed, start, slot, stream):
        return uniform(seed, torch.zeros_like(start), slot, stream)

    with (
        mock.patch("forescribe.speculative.rounds.accept.uniform", by_slot),
        mock.patch("forescribe.speculative.drafters.model_drafter.uniform", by_slot),
    ):
        outcome = measure("block verification", "model", 4, texts=TEXTS)
    assert not outcome.holds


def test_an_impossible_text_never_fits():
    wanted = {(0,): 0.25, (1,): 0.75, (2,): 0.0}
    assert sampling._fit(sampling.Counter({(0,): 250, (1,): 750}), wanted)[2] > 0.9
    assert sampling._fit(sampling.Counter({(0,): 250, (1,): 749, (2,): 1}), wanted)[2] == 0
    assert sampling._fit(sampling.Counter({(0,): 350, (1,): 650}), wanted)[2] < 1e-9
