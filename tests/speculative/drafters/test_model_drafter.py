"""Drafts of a model: the head on the nodes that are read, and what a draft leaves unchanged."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from forescribe.speculative import Engine, Fixed, ModelDrafter, Request, Sampling
from tests.speculative.engine.test_engine import Planned
from tests.speculative.tiny import TinyModel


class OneHead(TinyModel):
    """A model that scores one node alone; counts the nodes that its head was applied to."""

    heads = 0

    def score(self, tokens: Tensor, start: Tensor, **options: Any) -> Any:
        self.heads += tokens.shape[1]
        return super().score(tokens, start, **options)

    def score_at(self, tokens: Tensor, start: Tensor, node: Tensor, *, reach: int) -> Tensor:
        self.heads += 1
        logits = super().score(tokens, start, reach=reach).logits
        return logits[torch.arange(len(node)), node][:, None]


prompts = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=9), min_size=1, max_size=5)


@settings(max_examples=20, deadline=None)
@given(prompts, st.integers(1, 3), st.booleans())
def test_a_model_that_scores_one_node_gives_the_same_drafts(
    texts: list[list[int]], batch: int, plain: bool
) -> None:
    work = [Request(tuple(t), encoder_states=i % 8, tag=i) for i, t in enumerate(texts)]
    found = []
    for kind in (TinyModel, OneHead):
        drafter = ModelDrafter(kind(blur=0.3))
        schedule = Fixed(3) if plain else Planned(3, 0)
        engine = Engine(TinyModel(), drafter, batch=batch, eos=(10,), schedule=schedule)
        results = {r.request.tag: (r.tokens, r.accepted) for r in engine.run(work)}
        found.append((results, engine.stats.drafted, engine.stats.faults))
    assert found[0] == found[1]
    assert found[0][2] == 0


def test_the_head_runs_on_one_node_for_each_draft() -> None:
    draft = OneHead(blur=0.3)
    engine = Engine(TinyModel(), ModelDrafter(draft), batch=2, eos=(10,), schedule=Fixed(4))
    assert len(list(engine.run([Request((1, 2), tag=0)]))) == 1
    assert draft.heads == 4 * engine.stats.rounds


def test_a_draft_leaves_the_committed_tokens_as_they_are() -> None:
    for sampling in (Sampling(), Sampling(repetition=1.5)):
        drafter = ModelDrafter(TinyModel(blur=0.3))
        engine = Engine(TinyModel(), drafter, batch=2, eos=(10,), schedule=Fixed(4))
        engine.submit(Request((1, 2, 3), sampling=sampling, tag=0))
        engine.step()
        before = engine.rows.tokens.clone()
        with torch.inference_mode():
            draft = drafter.propose(engine.rows, 4)
        assert torch.equal(engine.rows.tokens, before)
        assert draft.tokens.shape == (2, 4)
