"""The losses: they are those of dense distributions, and the hybrid leaves the divergence as drafts agree."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, kl_div

from forescribe.distill.labels import CutHead, SparseDistribution
from forescribe.distill.training import TINY, hybrid, parts_of, warm_up


@given(seed=st.integers(0, 10_000), size=st.integers(2, 40), positions=st.integers(1, 6))
def test_with_all_tokens_listed_the_parts_are_those_of_dense_distributions(
    seed: int, size: int, positions: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    target = 3 * torch.randn(positions, size, generator=rng)
    draft = 3 * torch.randn(positions, size, generator=rng)
    greedy = torch.rand(positions, generator=rng) < 0.5
    parts = parts_of(draft, SparseDistribution.of(target, listed=size), greedy)
    p, q = target.softmax(-1), draft.softmax(-1)
    dense = kl_div(q.log(), p.log(), log_target=True, reduction="none").sum(-1)
    assert torch.allclose(parts.divergence, dense, atol=2e-4)
    choice = target.argmax(-1)
    assert torch.allclose(parts.choice, cross_entropy(draft, choice, reduction="none"), atol=1e-5)
    overlap = torch.where(greedy, q.gather(1, choice[:, None])[:, 0], torch.minimum(p, q).sum(-1))
    assert torch.allclose(parts.overlap, overlap, atol=1e-5)
    assert parts.equal.tolist() == (draft.argmax(-1) == choice).tolist()


@given(seed=st.integers(0, 10_000), listed=st.integers(1, 12))
def test_unlisted_tokens_lower_divergence_and_overlap_never_raise_them(
    seed: int, listed: int
) -> None:
    """Tokens lumped together can only hide a difference (the log-sum inequality)."""
    rng = torch.Generator().manual_seed(seed)
    target, draft = torch.randn(3, 24, generator=rng), torch.randn(3, 24, generator=rng)
    drawn = torch.zeros(3, dtype=torch.bool)
    few = parts_of(draft, SparseDistribution.of(target, listed=listed), drawn)
    whole = parts_of(draft, SparseDistribution.of(target, listed=24), drawn)
    assert bool((few.divergence <= whole.divergence + 1e-4).all())
    assert bool((few.overlap <= whole.overlap + 1e-6).all())


@given(seed=st.integers(0, 10_000), kept=st.sets(st.integers(0, 11), min_size=1))
def test_under_a_cut_head_the_other_tokens_are_one(seed: int, kept: set[int]) -> None:
    rng = torch.Generator().manual_seed(seed)
    target, draft = (2 * torch.randn(5, 12, generator=rng) for _ in range(2))
    head = CutHead.of(sorted(kept), 12, torch.device("cpu"))
    assert head.has(torch.arange(12)).tolist() == [token in kept for token in range(12)]
    wanted = SparseDistribution.of(target, listed=12)
    drawn = torch.zeros(5, dtype=torch.bool)
    parts = parts_of(draft[:, head.ids], wanted.under(head), drawn)
    p, q = target.softmax(-1)[:, head.ids], draft[:, head.ids].softmax(-1)
    rest = (1 - p.sum(-1)).clamp(min=0)
    assert torch.allclose(parts.overlap, torch.minimum(p, q).sum(-1), atol=1e-5)
    dense = (p * (p.log() - q.log())).sum(-1) + rest * (rest.clamp(min=TINY) / TINY).log()
    assert torch.allclose(parts.divergence, dense, atol=1e-3, rtol=1e-3)


def test_a_forbidden_token_has_no_share_in_any_loss() -> None:
    target = torch.tensor([[2.0, 1.0, -math.inf, 0.0]])
    draft = torch.zeros(1, 4, requires_grad=True)
    parts = parts_of(draft, SparseDistribution.of(target, listed=4), torch.tensor([False]))
    assert bool(parts.divergence.isfinite().all())
    hybrid(parts).backward()
    assert draft.grad is not None
    assert bool(draft.grad.isfinite().all())
    assert float(draft.grad[0, 2]) > 0  # descent makes it less likely


@pytest.mark.parametrize("loss", [warm_up, hybrid])
@pytest.mark.parametrize("greedy", [True, False])
def test_a_step_down_each_loss_raises_acceptance(loss: object, greedy: bool) -> None:
    assert callable(loss)
    target = 2 * torch.randn(200, 16, generator=torch.Generator().manual_seed(1))
    wanted = SparseDistribution.of(target)
    draft = torch.randn(200, 16, generator=torch.Generator().manual_seed(2)).requires_grad_()
    mask = torch.full((200,), greedy)
    before = parts_of(draft, wanted, mask)
    loss(before).backward()
    assert draft.grad is not None
    after = parts_of((draft - 400 * draft.grad).detach(), wanted, mask)
    assert float(after.overlap.mean()) > float(before.overlap.detach().mean()) + 0.01


def test_the_hybrid_is_the_divergence_for_strangers_and_variation_for_twins() -> None:
    far = torch.full((1, 8), -20.0)
    far[0, 3] = 20.0
    wanted = SparseDistribution.of(-far, listed=8)
    parts = parts_of(far, wanted, torch.tensor([False]))
    assert float(hybrid(parts)) == pytest.approx(float(warm_up(parts)), rel=1e-3)
    same = parts_of(far, SparseDistribution.of(far, listed=8), torch.tensor([False]))
    weight = math.exp(-3)
    expected = weight * float(warm_up(same)) + (1 - weight) * (1 - float(same.overlap))
    assert float(hybrid(same)) == pytest.approx(expected, abs=1e-6)
