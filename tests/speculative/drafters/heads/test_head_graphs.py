"""Rounds with heads are graph-safe: the same graphs serve every ragged state, and nothing in them syncs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forescribe.speculative import Engine
from forescribe.speculative.engine.schedule import Fixed
from tests.speculative.rounds.test_graph import BATCH, GAMMA, admitted, check_operators, rounds

from .test_head_rounds import decoder, drafter, each_kind, engine


def ragged_engine(kind: str, rows: str) -> Engine:
    made = engine(decoder(), drafter(kind), BATCH, Fixed(GAMMA), ranks=2)
    return admitted(made, rows)


@pytest.mark.nightly
def test_one_full_graph_each_proposes_and_observes_in_every_ragged_round() -> None:
    """The target is not traced: lean decoders write into views, which the tracer does not know."""
    graphs = []

    def backend(graph, example_inputs):  # type: ignore[no-untyped-def]
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    traced_engine, plain = ragged_engine("eagle3", "shaped"), ragged_engine("eagle3", "shaped")
    drafter: Any = traced_engine.drafter
    for name in ("propose", "observe"):
        traced = torch.compile(
            getattr(drafter, name), backend=backend, fullgraph=True, dynamic=False
        )
        setattr(drafter, name, traced)
    step, expected = rounds(traced_engine), rounds(plain)
    lengths = set()
    with torch.no_grad():
        for _ in range(8):
            step()
            expected()
            lengths.add(tuple(traced_engine.rows.lengths.tolist()))
            assert traced_engine.rows.tokens[:, :-1].equal(plain.rows.tokens[:, :-1])
            assert traced_engine.rows.accepted.equal(plain.rows.accepted)
    assert len(lengths) > 3 and len(graphs) == 2


@pytest.mark.parametrize("rows", ["greedy", "sampled", "shaped"])
@each_kind
def test_no_operator_of_a_round_syncs_or_changes_shape(kind: str, rows: str) -> None:
    check_operators(ragged_engine(kind, rows))
