"""The round is graph-safe: one full graph serves every ragged state, and nothing in it syncs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from forescribe.asr.model.rules import whisper_rules
from forescribe.speculative import Engine, Fixed, ModelDrafter, NgramDrafter, Request
from forescribe.speculative.drafters.routing import RoutingDrafter
from forescribe.speculative.models.modules import WhisperDecoder
from forescribe.speculative.models.slot_model import WhisperModel
from forescribe.speculative.models.vocabularies import NONE, MappedVocabulary, TokenMap, mapped
from forescribe.speculative.protocols import Drafter
from forescribe.speculative.requests import Sampling
from forescribe.speculative.rounds.round import run_round
from forescribe.speculative.rows import Rows
from tests.speculative.graphs.recorder import Recorder, compare
from tests.speculative.models.whispers import EOS, SOT, encoder_states, whisper

GAMMA, BATCH = 4, 3


def shifted(draft) -> MappedVocabulary:
    """A draft with every id one higher than in its target, and one that the target lacks."""
    V = draft.config.vocab_size
    to_draft = (*range(1, V), V - 1)
    ids = TokenMap(to_draft, (NONE, *range(V - 1)))
    return mapped(lambda head: WhisperDecoder(draft, listed=head), ids)


def ragged_engine(drafter: str, kind: str) -> Engine:
    target = whisper(layers=1)
    draft = whisper(layers=1, seed=1)
    makers: dict[str, Callable[[], Drafter]] = {
        "model": lambda: ModelDrafter(WhisperDecoder(draft)),
        "mapped": lambda: ModelDrafter(shifted(draft)),
        "routed": lambda: RoutingDrafter(
            [makers["model"](), makers["mapped"]()], lambda r: r.seed % 2, skips=False
        ),
        "ngram": lambda: NgramDrafter(),
    }
    engine = Engine(
        WhisperDecoder(target),
        makers[drafter](),
        batch=BATCH,
        eos=(EOS,),
        schedule=Fixed(GAMMA),
        processors=whisper_rules(target.generation_config, target.config),
        ranks=2,
    )
    return admitted(engine, kind)


def admitted(engine: Engine, kind: str) -> Engine:
    """The same with ragged rows, which end at different times."""
    shaped = Sampling(top_k=9, top_p=0.9, min_p=0.01, repetition=1.2, presence=0.1, frequency=0.1)
    for n in range(BATCH):
        engine.submit(
            Request(
                prompt=(SOT, 7 + n, *range(8, 8 + 3 * n)),
                encoder_states=encoder_states(n)
                if isinstance(engine.target, WhisperModel)
                else None,
                temperature=0.0 if kind == "greedy" else 0.9,
                sampling=shaped if kind == "shaped" else Sampling(),
                ranks=2 if kind == "shaped" else 0,
                seed=n,
                tag=n,
                max_new_tokens=8 + 6 * n,
            )
        )
    with torch.inference_mode():
        engine._texts._admit()
    return engine


def rounds(engine: Engine):
    """A closure that runs one round, and the rows it changes."""
    table, parts = engine._texts.table, engine._texts.runner.parts[True]
    table.rows.mode = table.mode
    return lambda: run_round(table.rows, parts, GAMMA, table.counters)


@pytest.mark.parametrize(
    ("drafter", "kind"),
    [
        pytest.param("model", "greedy", marks=pytest.mark.nightly),  # routed has its models
        ("routed", "shaped"),
        ("ngram", "sampled"),
    ],
)
def test_one_full_graph_serves_every_ragged_round(drafter, kind):
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    engine, plain = ragged_engine(drafter, kind), ragged_engine(drafter, kind)
    step, expected = rounds(engine), rounds(plain)
    compiled = torch.compile(step, backend=backend, fullgraph=True, dynamic=False)
    lengths = set()
    with torch.no_grad():
        for _ in range(8):
            compiled()
            expected()
            lengths.add(tuple(engine.rows.lengths.tolist()))
            state = plain.rows.tensors()
            for name, tensor in engine.rows.tensors().items():
                left, right = (t[:, :-1] if t.dim() > 1 else t for t in (tensor, state[name]))
                assert torch.allclose(left.double(), right.double(), atol=1e-4), name
    assert len(lengths) > 3  # the states really were ragged and moving
    assert not engine.rows.active.all()  # and some rows ended on the way
    assert len(graphs) == 1


@pytest.mark.parametrize("kind", ["greedy", "sampled", "shaped"])
@pytest.mark.parametrize("drafter", ["model", "routed", "ngram"])
def test_no_operator_of_a_round_syncs_or_changes_shape(drafter, kind):
    check_operators(ragged_engine(drafter, kind))


def check_operators(engine: Engine) -> None:
    """Several rounds run the same operators on the same shapes and addresses, and none of them syncs."""
    step, traces = rounds(engine), list[Recorder]()
    for _ in range(5):
        with torch.no_grad(), Recorder(engine) as trace:
            step()
        traces.append(trace)
        compare(traces[0], trace)
    assert len(traces[0].trace) > 100


def test_free_rows_do_not_move():
    engine = ragged_engine("model", "greedy")
    free = Rows.empty(BATCH, engine.rows.scratch, torch.device("cpu"))
    engine._texts.table.rows = free
    before = {k: v.clone() for k, v in free.tensors().items()}
    rounds(engine)()
    for name, tensor in free.tensors().items():
        left, right = (t[:, :-1] if t.dim() > 1 else t for t in (tensor, before[name]))
        assert torch.equal(left, right), name
