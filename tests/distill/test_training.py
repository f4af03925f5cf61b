"""Losses are those of dense distributions, the hybrid leaves the divergence as drafts agree; the optimizer of
matrices is in float32 what torch's is in bfloat16."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, kl_div

from forescribe.distill.labels import CutHead, SparseDistribution
from forescribe.distill.training import TINY, Float32Muon, Parts


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


@given(seed=st.integers(0, 10_000), kept=st.sets(st.integers(0, 11), min_size=1))
def test_under_a_cut_head_the_other_tokens_are_one(seed: int, kept: set[int]) -> None:
    rng = torch.Generator().manual_seed(seed)
    target, draft = (2 * torch.randn(5, 12, generator=rng) for _ in range(2))
    head = CutHead.of(sorted(kept), 12, torch.device("cpu"))
    assert head.has(torch.arange(12)).tolist() == [token in kept for token in range(12)]
    wanted = SparseDistribution.of(target, listed=12)
    parts = Parts.of(draft[:, head.ids], wanted.under(head))
    p, q = target.softmax(-1)[:, head.ids], draft[:, head.ids].softmax(-1)
    rest = (1 - p.sum(-1)).clamp(min=0)
    dense = (p * (p.log() - q.log())).sum(-1) + rest * (rest.clamp(min=TINY) / TINY).log()
    assert torch.allclose(parts.divergence, dense, atol=1e-3, rtol=1e-3)


def test_a_forbidden_token_has_no_share_in_any_loss() -> None:
    target = torch.tensor([[2.0, 1.0, -math.inf, 0.0]])
    draft = torch.zeros(1, 4, requires_grad=True)
    parts = Parts.of(draft, SparseDistribution.of(target, listed=4))
    assert bool(parts.divergence.isfinite().all())
    parts.hybrid().backward()
    assert draft.grad is not None
    assert bool(draft.grad.isfinite().all())
    assert float(draft.grad[0, 2]) > 0  # descent makes it less likely


@pytest.mark.parametrize("loss", [Parts.warm_up, Parts.hybrid])
def test_a_step_down_each_loss_makes_the_targets_choice_likelier(loss: object) -> None:
    assert callable(loss)
    wanted = SparseDistribution.of(
        2 * torch.randn(200, 16, generator=torch.Generator().manual_seed(1))
    )
    draft = torch.randn(200, 16, generator=torch.Generator().manual_seed(2)).requires_grad_()
    before = Parts.of(draft, wanted)
    loss(before).backward()
    assert draft.grad is not None
    after = Parts.of((draft - 400 * draft.grad).detach(), wanted)
    assert (
        float((-after.choice).exp().mean()) > float((-before.choice.detach()).exp().mean()) + 0.01
    )


def test_the_hybrid_is_the_divergence_for_strangers_and_acceptance_for_twins() -> None:
    far = torch.full((1, 8), -20.0)
    far[0, 3] = 20.0
    parts = Parts.of(far, SparseDistribution.of(-far, listed=8))
    assert float(parts.hybrid()) == pytest.approx(float(parts.warm_up()), rel=1e-3)
    same = Parts.of(far, SparseDistribution.of(far, listed=8))
    weight, alpha = math.exp(-3), float((-same.choice).exp())
    expected = weight * float(same.warm_up()) + (1 - weight) * (1 - alpha)
    assert float(same.hybrid()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("shape", [(24, 40), (40, 24)])
def test_steps_are_those_of_torch_within_the_rounding_of_bfloat16(shape) -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(shape), torch.randn(3, *shape)
    made = []
    for kind in (torch.optim.Muon, Float32Muon):
        weight = torch.nn.Parameter(start.clone())
        optimizer = kind([weight], lr=0.1, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
        for gradient in gradients:
            weight.grad = gradient.clone()
            optimizer.step()
        made.append((weight.detach() - start, optimizer.state_dict()))
    (theirs, their_state), (ours, our_state) = made
    assert (ours - theirs).norm() < 0.02 * theirs.norm()
    assert our_state["param_groups"] == their_state["param_groups"]
    buffers = [s["state"][0]["momentum_buffer"] for s in (our_state, their_state)]
    assert torch.equal(*buffers)


def test_a_weight_without_a_gradient_stays() -> None:
    weight = torch.nn.Parameter(torch.ones(3, 4))
    Float32Muon([weight], lr=0.1).step()
    assert torch.equal(weight, torch.ones(3, 4))
