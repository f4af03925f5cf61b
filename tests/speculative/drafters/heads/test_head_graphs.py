"""Rounds with heads are graph-safe: the same graphs serve every ragged state, and nothing in them syncs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forescribe.speculative import Engine, Request
from forescribe.speculative.drafters.heads import drafter_of
from forescribe.speculative.engine.schedule import Fixed
from forescribe.speculative.models.engines import ModelEngine, causal_decoder
from forescribe.speculative.requests import Sampling
from tests.speculative.rounds.test_graph import BATCH, GAMMA, Watch, rounds

from ...models.causal_lms import EOS
from . import tiny_heads
from .test_head_drafts import FAMILIES


def ragged_engine(family: str, kind: str) -> Engine:
    model = tiny_heads.target()
    engine = Engine(
        causal_decoder(model, engine=ModelEngine.LEAN),
        drafter_of(tiny_heads.made(family, model).head),
        batch=BATCH,
        eos=[EOS],
        schedule=Fixed(GAMMA),
        ranks=2,
    )
    shaped = Sampling(top_k=9, top_p=0.9, min_p=0.01, repetition=1.2, presence=0.1, frequency=0.1)
    for n in range(BATCH):
        engine.submit(
            Request(
                prompt=(5, 7 + n, *range(8, 8 + 3 * n)),
                temperature=0.0 if kind == "greedy" else 0.9,
                sampling=shaped if kind == "shaped" else Sampling(),
                ranks=2 if kind == "shaped" else 0,
                seed=n,
                tag=n,
                max_new_tokens=8 + 6 * n,
            )
        )
    with torch.inference_mode():
        engine._scheduler._admit()
    return engine


@pytest.mark.parametrize("family", FAMILIES)
def test_one_full_graph_each_proposes_and_observes_in_every_ragged_round(family: str) -> None:
    """The target is not traced: lean decoders write into views, which the tracer does not know."""
    graphs = []

    def backend(graph, example_inputs):  # type: ignore[no-untyped-def]
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    engine, plain = ragged_engine(family, "shaped"), ragged_engine(family, "shaped")
    drafter: Any = engine._context.drafter
    for name in ("propose", "observe"):
        traced = torch.compile(
            getattr(drafter, name), backend=backend, fullgraph=True, dynamic=False
        )
        setattr(drafter, name, traced)
    step, expected = rounds(engine), rounds(plain)
    lengths = set()
    with torch.no_grad():
        for _ in range(8):
            step()
            expected()
            lengths.add(tuple(engine.rows.lengths.tolist()))
            assert engine.rows.tokens[:, :-1].equal(plain.rows.tokens[:, :-1])
            assert engine.rows.accepted.equal(plain.rows.accepted)
    assert len(lengths) > 3 and len(graphs) == 2


@pytest.mark.parametrize("kind", ["greedy", "sampled", "shaped"])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_operator_of_a_round_syncs_or_changes_shape(family: str, kind: str) -> None:
    step, traces = rounds(ragged_engine(family, kind)), []
    for _ in range(4):
        with torch.no_grad(), Watch() as watch:
            step()
        traces.append(watch.trace)
    assert len(traces[0]) > 100
    assert all(trace == traces[0] for trace in traces[1:])
