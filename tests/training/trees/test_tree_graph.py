"""A round with trees is graph-safe: one full graph serves every ragged state, and nothing in it syncs."""

from __future__ import annotations

import pytest
import torch

from forescribe.asr.decode.rules import whisper_rules
from forescribe.speculative import Engine, Fixed
from forescribe.speculative.models.modules import WhisperDecoder
from forescribe.speculative.types import Topology
from tests.speculative.models.whispers import EOS, whisper
from tests.speculative.rounds.test_graph import BATCH, GAMMA, Watch, admitted, rounds
from training.trees.tree_drafter import Growth, TreeDrafter
from training.trees.tree_rejection import TreeRejection

SHAPES = [
    pytest.param(Growth(2, 3), id="grown"),
    pytest.param(Growth(2, 2, copied=2), id="with copies"),
    pytest.param(Topology((0, 0, 1, 1)), id="static"),
]


def ragged_engine(shape: Growth | Topology, kind: str) -> Engine:
    target = whisper(layers=1)
    drafter = TreeDrafter(WhisperDecoder(whisper(layers=1, seed=1)), shape)
    engine = Engine(
        WhisperDecoder(target),
        drafter,
        batch=BATCH,
        eos=(EOS,),
        schedule=Fixed(GAMMA),
        sampled=TreeRejection(),
        processors=whisper_rules(target.generation_config, target.config),
        ranks=2,
    )
    return admitted(engine, kind)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["greedy", "shaped"])
def test_one_full_graph_serves_every_ragged_round(shape, kind):
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    engine, plain = ragged_engine(shape, kind), ragged_engine(shape, kind)
    step, expected = rounds(engine), rounds(plain)
    compiled = torch.compile(step, backend=backend, fullgraph=True, dynamic=False)
    lengths = set()
    with torch.no_grad():
        # The models keep the mask of a tree that all rows share from the first round on, as warm-ups do.
        step()
        expected()
        for _ in range(7):
            compiled()
            expected()
            lengths.add(tuple(engine.rows.lengths.tolist()))
            state = plain.rows.tensors()
            for name, tensor in engine.rows.tensors().items():
                left, right = (t[:, :-1] if t.dim() > 1 else t for t in (tensor, state[name]))
                assert torch.allclose(left.double(), right.double(), atol=1e-4), name
    assert len(lengths) > 3
    assert len(graphs) == 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["greedy", "sampled", "shaped"])
def test_no_round_syncs_and_all_have_the_same_shapes(shape, kind):
    step, traces = rounds(ragged_engine(shape, kind)), []
    step()
    for _ in range(4):
        with torch.no_grad(), Watch() as watch:
            step()
        traces.append(watch.trace)
    assert len(traces[0]) > 100 and all(trace == traces[0] for trace in traces)
