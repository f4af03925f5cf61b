"""Acceptance rules: one round by exact enumeration, and the parts of a rule."""

from __future__ import annotations

import itertools

import pytest
import torch

from forescribe.speculative.requests import Mode
from forescribe.speculative.rounds.accept import (
    BlockVerification,
    GreedyMatch,
    TokenRejection,
    distribution,
    draw,
    policy,
)
from forescribe.speculative.rows import Rows
from forescribe.speculative.types import Draft
from tests.speculative.rounds.enumeration import (
    DRAFT_DISTRIBUTIONS,
    V,
    distributions,
    joint,
    speculative_joint,
)


@pytest.mark.parametrize("valid", [None, 1])
@pytest.mark.parametrize("gamma", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dense", [True, False], ids=["dense draft", "one-hot draft"])
@pytest.mark.parametrize("rule", [TokenRejection, BlockVerification])
def test_sampling_rules_emit_the_targets_law(rule, gamma, seed, dense, valid):
    p = distributions(seed, gamma, None)
    q = distributions(seed + 100, gamma, DRAFT_DISTRIBUTIONS) if dense else None
    expected, (actual, _) = joint(p, gamma), speculative_joint(rule, p, q, gamma, valid)
    for text, probability in expected.items():
        assert actual[text] == pytest.approx(probability, abs=1e-12)


def test_block_verification_keeps_more_than_token_rejection():
    """The paper's example (2403.10444, section 2): 10 against 11 ninths of two drafts, of two tokens."""
    p = {prefix: [1 / 3, 2 / 3, 0.0] for prefix in [(), (0,), (1,), (2,)]}
    p |= {prefix: [1 / 3, 2 / 3, 0.0] for prefix in itertools.product(range(V), repeat=2)}
    q = {prefix: [2 / 3, 1 / 3, 0.0] for prefix in p}
    assert speculative_joint(TokenRejection, p, q, 2)[1] == pytest.approx(10 / 9, abs=1e-12)
    assert speculative_joint(BlockVerification, p, q, 2)[1] == pytest.approx(11 / 9, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_block_verification_never_keeps_fewer(seed):
    p, q = distributions(seed, 3, None), distributions(seed + 100, 3, DRAFT_DISTRIBUTIONS)
    block = speculative_joint(BlockVerification, p, q, 3)[1]
    assert block >= speculative_joint(TokenRejection, p, q, 3)[1] - 1e-12


def verdict_rows(logits: torch.Tensor, temperature: float) -> Rows:
    rows = Rows.empty(len(logits), 16, torch.device("cpu"))
    rows.sampling.temperature.fill_(temperature)
    rows.sampling.seed.copy_(torch.arange(len(logits)))
    return rows


@pytest.mark.parametrize("rule", [TokenRejection, BlockVerification])
def test_greedy_match_is_a_sampling_rule_at_temperature_zero(rule):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 5, 7, generator=generator)
    tokens = logits[:, :4].argmax(-1)
    wrong = torch.rand(400, 4, generator=generator) < 0.3
    tokens = torch.where(wrong, torch.randint(7, (400, 4), generator=generator), tokens)
    draft = Draft(tokens, torch.randint(0, 5, (400,), generator=generator))
    rows = verdict_rows(logits, 0.0)
    greedy, general = GreedyMatch()(rows, draft, logits), rule()(rows, draft, logits)
    assert greedy.num_accepted.bincount(minlength=5).min() > 0  # every outcome occurs
    assert torch.equal(greedy.num_accepted, general.num_accepted)
    for a, b, n in zip(greedy.tokens, general.tokens, greedy.num_accepted, strict=True):
        assert torch.equal(a[: n + 1], b[: n + 1])


def test_drafts_behind_valid_are_neither_accepted_nor_subtracted():
    p = torch.tensor([[[0.5, 0.5, 0.0]] * 3], dtype=torch.float64)
    draft = Draft(torch.tensor([[0, 0]]), torch.tensor([0]), p[:, :2])
    for u, token in [(0.9, 0), (0.1, 1)]:
        noise = torch.full((1, 3), u)
        verdict = TokenRejection.judge(draft, p, torch.zeros(1, 2), noise)
        assert verdict.num_accepted.tolist() == [0]
        assert verdict.tokens[0, 0] == token  # drawn from p itself


def test_a_draw_never_takes_a_token_of_zero_weight_and_follows_the_weights():
    weights = torch.tensor([0.0, 1.0, 0.0, 3.0, 0.0], dtype=torch.float64)
    u = torch.cat([torch.tensor([0.0, 1 - 2**-24]), (torch.arange(800) + 0.5) / 800]).double()
    drawn = draw(weights.expand(len(u), -1), u)
    assert set(drawn.tolist()) == {1, 3}
    assert (drawn[2:] == 1).double().mean() == pytest.approx(0.25)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("least", [1e-37, 1e-44])
def test_weights_that_underflow_draw_no_token_of_zero_weight(dtype, least):
    """`1 - u` of them is 0 for a large u."""
    weights = torch.tensor([0.0, least, 0.0, least, 0.0], dtype=dtype)
    for u in (0.0, 0.4, 0.6, 1 - 2**-24):
        assert int(draw(weights, torch.tensor(u, dtype=dtype))) in (1, 3)


def test_running_sums_that_are_not_monotonic_draw_no_token_of_zero_weight(monkeypatch):
    """GPUs add in blocks, whose sums may differ in their last bit."""
    weights = torch.tensor([0.0, 0.5, 0.0, 0.25, 0.0])
    sums = torch.tensor([1e-7, 0.5, 0.5 + 6e-8, 0.75, 0.75 + 6e-8])
    monkeypatch.setattr(torch.Tensor, "cumsum", lambda self, dim: sums)
    near = [(0.75 - 0.5 - shift) / 0.75 for shift in (-6e-8, -3e-8, 0.0, 3e-8, 6e-8)]
    for u in (0.0, 1 - 2**-24, *near):
        assert int(draw(weights, torch.tensor(u))) in (1, 3)


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2**-24])
@pytest.mark.parametrize("drafted", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("rule", [TokenRejection, BlockVerification])
@pytest.mark.parametrize("place", range(3))
def test_no_random_number_accepts_or_draws_a_token_that_the_target_forbids(rule, drafted, u, place):
    """Token 2 has target probability 0: as a draft it is not kept, however likely the drafter thought it
    was, after drafts that the target takes for certain or might take; nor is it drawn afterwards."""
    gamma = 3
    for sure in (0.5, 1.0):  # of the tokens before it
        p = torch.tensor([[[sure, 1 - sure, 0.0]] * (gamma + 1)])
        q = torch.tensor([[[sure, 1 - sure, 0.0]] * gamma])
        q[0, place] = torch.tensor([1 - drafted, 0.0, drafted])
        tokens = torch.tensor([[2 if i == place else 0 for i in range(gamma)]])
        for probs in (q, None):
            for valid in range(place + 1, gamma + 1):
                draft = Draft(tokens, torch.tensor([valid]), probs)
                noise = torch.full((1, gamma), u), torch.full((1, gamma + 1), u)
                verdict = rule.judge(draft, p, *noise)
                assert int(verdict.num_accepted) <= place
                assert 2 not in verdict.tokens[0, : int(verdict.num_accepted) + 1]


def test_no_random_number_accepts_or_draws_what_top_p_cut():
    """At every 24-bit number of the ends of the range, through a rule's own noise and distribution."""
    logits = torch.log(torch.tensor([0.6, 0.3, 0.1])).expand(64, 3, 3).contiguous()
    rows = verdict_rows(logits, 1.0)
    rows.sampling.top_p.fill_(0.8)
    rows.mode = Mode(sampling=True, bounded=True)
    p = distribution(rows, logits)
    assert bool((p[..., 2] == 0).all()) and bool((p[..., :2] > 0).all())
    draft = Draft(torch.full((64, 2), 2), torch.full((64,), 2))
    for rule in (TokenRejection, BlockVerification):
        for u in (0.0, 2**-24, 1 - 2**-24):
            verdict = rule.judge(draft, p, torch.full((64, 2), u), torch.full((64, 3), u))
            assert not verdict.num_accepted.any() and bool((verdict.tokens[:, 0] != 2).all())


def test_policy_is_one_hot_at_zero_and_softmax_above():
    logits = torch.tensor([[[1.0, 3.0, 2.0]], [[1.0, 3.0, 2.0]]])
    probabilities = policy(logits, torch.tensor([0.0, 0.5]))
    assert probabilities[0, 0].tolist() == [0.0, 1.0, 0.0]
    assert torch.allclose(probabilities[1, 0], (logits[1, 0] / 0.5).softmax(-1))
