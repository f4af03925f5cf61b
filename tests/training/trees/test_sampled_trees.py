"""Sampled texts of several rounds with trees, through the engine: chi-square tests against the target's own
distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.quality import sampling
from forescribe.speculative.rounds.accept import draw
from forescribe.speculative.testing import TinyModel
from forescribe.speculative.types import Draft, Topology, Verdict
from training.trees.tree_drafter import Growth, TreeDrafter
from training.trees.tree_rejection import TreeRejection

TEXTS = 1000  # of each kind of sampling
RULE = "tree rejection"


def draft(listed: tuple[int, ...] | None = None) -> TinyModel:
    """Right about half the time."""
    return TinyModel(vocab=sampling.VOCAB, width=8, positions=16, blur=0.5, listed=listed)


DRAFTERS: dict[str, Callable[[], TreeDrafter]] = {
    "grown": lambda: TreeDrafter(draft(), Growth(2, 3)),
    "with copies": lambda: TreeDrafter(draft(), Growth(2, 2, copied=2)),
    "drawn": lambda: TreeDrafter(draft(), Topology((0, 0, 1, 1))),
    "drawn of few tokens": lambda: TreeDrafter(draft((0, 2, 3)), Topology((0, 0, 0, 0))),
}


@pytest.fixture(params=DRAFTERS)
def drafter(request, monkeypatch) -> str:
    monkeypatch.setitem(sampling.RULES, RULE, TreeRejection)
    monkeypatch.setattr(sampling, "drafter", lambda name: DRAFTERS[name]())
    name: str = request.param
    return name


def test_sampled_texts_follow_the_targets_distribution(drafter):
    outcome = sampling.measure(RULE, drafter, 4, texts=TEXTS)
    assert [fit.sampling for fit in outcome.fits] == list(sampling.SAMPLINGS)
    assert all(fit.degrees > 15 for fit in outcome.fits)
    assert outcome.rounds_per_text > 1.3 and 0.1 < outcome.acceptance_rate < 0.9
    assert outcome.holds


def test_texts_that_end_early_follow_it_too(drafter):
    """End-of-text among the nodes and behind them."""
    outcome = sampling.measure(RULE, drafter, 4, texts=3000, names=["plain", "all"], eos=0)
    assert outcome.holds
    assert all(fit.degrees > 10 for fit in outcome.fits)


def test_a_sampled_text_does_not_depend_on_who_shares_the_batch(drafter):
    work = list(sampling.requests(tuple(sampling.SAMPLINGS), 10))

    def texts(batch: int) -> dict[int, tuple[int, ...]]:
        made = sampling.engine(RULE, drafter, 4, batch=batch)
        return {r.request.seed: r.tokens for r in made.run(work)}

    alone = texts(1)
    assert len(set(alone.values())) > 20
    assert texts(7) == texts(60) == alone


def test_the_test_fails_where_rejected_siblings_are_not_subtracted(monkeypatch):
    """The test can fail: behind rejected drafts the token is drawn from p itself."""

    class Wrong(TreeRejection):
        @classmethod
        def judge(cls, draft: Draft, p: Tensor, accept_u: Tensor, extra_u: Tensor) -> Verdict:
            found = TreeRejection.judge(draft, p, accept_u, extra_u)
            other = draw(p[:, 0], extra_u[:, 0])[:, None]
            none = found.num_accepted[:, None] == 0
            return replace(found, tokens=torch.where(none, other, found.tokens))

    monkeypatch.setitem(sampling.RULES, RULE, Wrong)
    monkeypatch.setattr(sampling, "drafter", lambda name: DRAFTERS[name]())
    assert not sampling.measure(RULE, "drawn", 4, texts=TEXTS).holds
