"""Losses are those of dense distributions, the hybrid leaves the divergence as drafts agree."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, kl_div

from forescribe.distill import training
from forescribe.distill.labels import SparseDistribution
from forescribe.distill.training import Optimizers, Parts


@given(seed=st.integers(0, 10_000), size=st.integers(2, 40), positions=st.integers(1, 6))
def test_with_all_tokens_listed_the_parts_are_those_of_dense_distributions(
    seed: int, size: int, positions: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    target = 3 * torch.randn(positions, size, generator=rng)
    draft = 3 * torch.randn(positions, size, generator=rng)
    parts = Parts.of(draft, SparseDistribution.of(target, listed=size))
    p, q = target.softmax(-1), draft.softmax(-1)
    dense = kl_div(q.log(), p.log(), log_target=True, reduction="none").sum(-1)
    assert torch.allclose(parts.divergence, dense, atol=2e-4)
    choice = target.argmax(-1)
    assert torch.allclose(parts.choice, cross_entropy(draft, choice, reduction="none"), atol=1e-5)


@given(seed=st.integers(0, 10_000), listed=st.integers(1, 12))
def test_unlisted_tokens_lower_the_divergence_and_never_raise_it(seed: int, listed: int) -> None:
    """Tokens lumped together can only hide a difference (the log-sum inequality)."""
    rng = torch.Generator().manual_seed(seed)
    target, draft = torch.randn(3, 24, generator=rng), torch.randn(3, 24, generator=rng)
    few, whole = (
        Parts.of(draft, SparseDistribution.of(target, listed=count)) for count in (listed, 24)
    )
    assert bool((few.divergence <= whole.divergence + 1e-4).all())


def test_a_forbidden_token_has_no_share_in_any_loss() -> None:
    target = torch.tensor([[2.0, 1.0, -math.inf, 0.0]])
    draft = torch.zeros(1, 4, requires_grad=True)
    parts = Parts.of(draft, SparseDistribution.of(target, listed=4))
    assert bool(parts.divergence.isfinite().all())
    parts.hybrid().backward()
    assert draft.grad is not None
    assert bool(draft.grad.isfinite().all())
    assert float(draft.grad[0, 2]) > 0  # descent makes it less likely


def test_the_hybrid_is_the_divergence_for_strangers_and_acceptance_for_twins() -> None:
    far = torch.full((1, 8), -20.0)
    far[0, 3] = 20.0
    parts = Parts.of(far, SparseDistribution.of(-far, listed=8))
    assert float(parts.hybrid()) == pytest.approx(float(parts.warm_up()), rel=1e-3)
    same = Parts.of(far, SparseDistribution.of(far, listed=8))
    weight, alpha = math.exp(-3), float((-same.choice).exp())
    expected = weight * float(same.warm_up()) + (1 - weight) * (1 - alpha)
    assert float(same.hybrid()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("units", "count"), [(True, 2), (False, 1)])
def test_every_weight_that_learns_has_one_optimizer_whatever_the_cpu(
    monkeypatch, units: bool, count: int
) -> None:
    monkeypatch.setattr(training, "bfloat16_units", lambda: units)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    optimizers = Optimizers(model, peak=0.01)
    assert len(optimizers.all) == count
    held = [p for o in optimizers.all for group in o.param_groups for p in group["params"]]
    learning = {id(p) for p in model.parameters() if p.requires_grad}
    assert len(held) == len(learning) and {id(p) for p in held} == learning
    before = [p.detach().clone() for p in model.parameters()]
    model(torch.randn(8, 4)).square().sum().backward()
    optimizers.step(1.0)
    moved = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert moved == [p.requires_grad for p in model.parameters()]
