"""Heads in the engine: nothing is lost, at temperature 0 and above; and an exact head is never rejected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.speculative import Engine, Request
from forescribe.speculative.drafters.heads import HeadDrafter
from forescribe.speculative.engine.schedule import Fixed
from forescribe.speculative.errors import LoadError
from forescribe.speculative.model_engines import ModelEngine, causal_decoder
from forescribe.speculative.models.heads.records import (
    LAST,
    Head,
    LeanBody,
    LeanLayer,
    Output,
    Taps,
)
from forescribe.speculative.models.weights import Linear
from forescribe.speculative.requests import Sampling
from tests.speculative.models.causal_lms import EOS, VOCAB
from tests.speculative.tiny import TinyModel

from . import tiny_heads
from .test_head_drafts import FAMILIES, GAMMA, Planned, requests

each_kind = pytest.mark.parametrize("kind", FAMILIES)


def decoder() -> Any:
    return causal_decoder(tiny_heads.target(), engine=ModelEngine.LEAN)


def drafter(kind: str, **options: Any) -> Any:
    return HeadDrafter(tiny_heads.made(kind, tiny_heads.target()).head, **options)


def engine(target: Any, drafts: Any, batch: int = 3, schedule: Any = None, **more: Any) -> Engine:
    schedule = schedule or Fixed(GAMMA if drafts else 0)
    return Engine(target, drafts, batch=batch, schedule=schedule, **{"eos": [EOS], **more})


def texts(made: Engine, asked: list[Request]) -> dict[Any, Any]:
    results = list(made.run(asked))
    assert len(results) == len(asked)
    assert all(r.error is None and r.draft_error is None for r in results)
    return {r.request.tag: r.tokens for r in results}


@each_kind
@settings(max_examples=5, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 14), st.integers(1, 12)), min_size=1, max_size=6),
    st.integers(1, 7),
    st.integers(1, 4),
)
def test_prompts_of_all_lengths_and_drafts_of_all_lengths_change_nothing(
    kind: str, sizes: list[tuple[int, int]], gamma: int, batch: int
) -> None:
    asked = [
        Request(tuple((7 * i + 3 * j) % VOCAB for j in range(length)), max_new_tokens=new, tag=i)
        for i, (length, new) in enumerate(sizes)
    ]
    found = texts(engine(decoder(), drafter(kind), batch, Fixed(gamma)), asked)
    assert found == texts(engine(decoder(), None, batch), asked)


@each_kind
def test_every_sampled_row_equals_decoding_it_alone_without_drafts(kind: str) -> None:
    """So it has the target's distribution, as plain decoding has."""
    shaped = Sampling(top_k=20, repetition=1.2)
    asked = [
        replace(r, max_new_tokens=12, temperature=0.9, seed=i, sampling=shaped)
        for i, r in enumerate(requests())
    ]
    together = engine(decoder(), drafter(kind))
    assert texts(together, asked) == texts(engine(decoder(), None, 1), asked)
    assert 0 < together.stats.accepted < together.stats.drafted


@pytest.mark.parametrize("schedule", [Fixed(GAMMA), Planned(GAMMA, 0)], ids=["drafts", "stretches"])
def test_a_head_of_the_targets_own_layers_is_accepted_throughout(schedule: Any) -> None:
    model = _windowed()
    target = causal_decoder(model, engine=ModelEngine.LEAN)
    made = engine(target, HeadDrafter(_own_layers(model)), 3, schedule, eos=[])
    long = [r for r in requests(30) if len(r.prompt) >= 8]
    asked = [Request(r.prompt, max_new_tokens=24, tag=i) for i, r in enumerate(long)]
    assert len(asked) > 3
    results = list(made.run(asked))
    assert made.stats.drafted > 20
    assert all(r.accepted == r.drafted for r in results)


def test_a_target_that_shares_nothing_is_refused() -> None:
    with pytest.raises(LoadError, match="TinyModel does not share its embeddings"):
        drafter("eagle3").bind(TinyModel())


@each_kind
def test_drafts_end_where_the_head_doubts(kind: str) -> None:
    whole, ended = (
        engine(decoder(), drafter(kind, confidence=confidence)) for confidence in (0.0, 0.9)
    )
    asked = requests()
    plain = texts(engine(decoder(), None), asked)
    assert texts(whole, asked) == texts(ended, asked) == plain
    assert ended.stats.drafted < whole.stats.drafted


# -- models ---------------------------------------------------------------------------------------------


def _windowed() -> Any:
    """A model whose embeddings are of length 1 per number, and whose layers read three positions: behind
    five tokens nothing depends on the first one, which a chain head never reads."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(4)
    config = MistralConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        initializer_range=0.4,
        sliding_window=3,
        rms_norm_eps=1e-12,
    )
    model = MistralForCausalLM(config).eval()
    rows = model.model.embed_tokens.weight.data
    rows /= rows.square().mean(-1, keepdim=True).sqrt()
    model.model.embed_tokens.padding_idx = None
    return model


def _own_layers(model: Any) -> Head:
    """A chain head that reads embeddings alone, with all of a model's layers."""
    config, width = model.config, model.config.hidden_size
    layers = []
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        layers.append(
            LeanLayer(
                input_norm=layer.input_layernorm.weight.detach(),
                query=Linear(attention.q_proj.weight.detach()),
                key_value=_joined(attention.k_proj, attention.v_proj),
                query_norm=None,
                key_norm=None,
                out=Linear(attention.o_proj.weight.detach()),
                post_norm=layer.post_attention_layernorm.weight.detach(),
                gate_up=_joined(mlp.gate_proj, mlp.up_proj),
                down=Linear(mlp.down_proj.weight.detach()),
                window=config.sliding_window,
            )
        )
    return Head(
        family="its own",
        taps=Taps((LAST,), config.rms_norm_eps),
        embed_norm=torch.ones(width),
        feature_norm=torch.ones(width),
        body=LeanBody(tuple(layers), config, model.model.rotary_emb),
        output=Output(model.model.norm.weight.detach(), config.rms_norm_eps),
        join=Linear(torch.cat([torch.eye(width), torch.zeros(width, width)], 1)),
    )


def _joined(*modules: Any) -> Linear:
    return Linear(torch.cat([m.weight.detach() for m in modules]))
