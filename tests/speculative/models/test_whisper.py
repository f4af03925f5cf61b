"""The engine on unmodified transformers Whispers, against a forward without cache or batch."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.asr.model.rules import whisper_rules
from forescribe.speculative import Engine, Fixed, ModelDrafter, NgramDrafter, Request
from forescribe.speculative.models.lean import LeanWhisperDecoder
from forescribe.speculative.models.modules import WhisperDecoder
from forescribe.speculative.models.weights import same_encoder
from tests.speculative.models.whispers import (
    EOS,
    NO_TIMESTAMPS,
    SOT,
    decoder_only,
    encoder_states,
    forward,
    whisper,
)
from tests.speculative.plain import decode

POSITIONS = 40
ENGINES = {"lean": LeanWhisperDecoder, "modules": WhisperDecoder}
prompts = st.builds(
    lambda text, plain: (SOT, *text, *([NO_TIMESTAMPS] if plain else [])),
    st.lists(st.integers(6, 48), max_size=12).map(tuple),
    st.booleans(),
)
rows = st.lists(st.tuples(prompts, st.integers(0, 5)), min_size=1, max_size=6)


@functools.cache
def oracle(prompt: tuple[int, ...], seed: int, dtype: torch.dtype) -> tuple[int, ...]:
    """The tokens after `prompt` with `encoder_states(seed)`. The examples of one test with another drafter
    or decoder are the same."""
    target, states = whisper(dtype=dtype), encoder_states(seed, dtype)
    return decode(
        lambda tokens: forward(target, states, tokens),
        Request(prompt=prompt, encoder_states=states),
        eos=(EOS,),
        max_tokens=POSITIONS,
        processors=whisper_rules(target.generation_config, target.config),
    )


@pytest.mark.parametrize(
    ("draft", "dtype", "decoder"),
    [
        ("none", torch.float32, LeanWhisperDecoder),  # by modules: with poison, below
        ("model", torch.float64, LeanWhisperDecoder),
        ("model", torch.float32, WhisperDecoder),
        ("decoder-only", torch.float32, LeanWhisperDecoder),
        ("decoder-only", torch.float64, WhisperDecoder),
        ("ngram", torch.float64, LeanWhisperDecoder),
    ],
)
@settings(max_examples=3)
@given(rows, st.integers(1, 3), st.sampled_from([1, 3, 4, 8]))
def test_every_row_equals_decoding_it_alone(draft, dtype, decoder, work, batch, gamma):
    target = whisper(dtype=dtype)
    rules = whisper_rules(target.generation_config, target.config)
    made = {
        "none": lambda: None,
        "model": lambda: ModelDrafter(decoder(whisper(1, 1))),
        "decoder-only": lambda: ModelDrafter(decoder(decoder_only())),
        "ngram": lambda: NgramDrafter(),
    }
    drafter = made[draft]()
    engine = Engine(
        decoder(target),
        drafter,
        batch=batch,
        eos=(EOS,),
        schedule=Fixed(gamma if drafter else 0),
        processors=rules,
    )
    requests = [
        Request(prompt=prompt, encoder_states=encoder_states(seed, dtype), tag=i)
        for i, (prompt, seed) in enumerate(work)
    ]
    results = {r.request.tag: r for r in engine.run(requests)}
    for i, (prompt, seed) in enumerate(work):
        assert results[i].tokens == oracle(prompt, seed, dtype)


@pytest.mark.parametrize("decoder", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("gamma", [0, 1, 5])
def test_poisoned_slots_are_never_read(decoder, gamma):
    """Every slot and cross-attention key is poisoned before admission; only written ones may count."""
    target = whisper()
    rules = whisper_rules(target.generation_config, target.config)
    models = [decoder(target), decoder(whisper(1, 1))]
    engine = Engine(
        models[0],
        ModelDrafter(models[1]) if gamma else None,
        batch=2,
        eos=(EOS,),
        schedule=Fixed(gamma),
        processors=rules,
    )
    for model in models[: 2 if gamma else 1]:
        lean = hasattr(model, "cross")  # beside its cache
        cross = [(model.cross.keys, model.cross.values)] if lean else model.cache.cross
        for pair in [*(model.cache.kv if lean else model.cache.layers), *cross]:
            for buffer in pair:
                buffer.fill_(1e4)
    requests = [
        Request(prompt=(SOT, *range(6, 6 + n)), encoder_states=encoder_states(n), tag=n)
        for n in range(5)
    ]
    for result in engine.run(requests):
        assert result.tokens == oracle(result.request.prompt, result.request.tag, torch.float32)


def test_encoders_are_compared_by_weight():
    model, twin, tuned = whisper(), copy.deepcopy(whisper()), copy.deepcopy(whisper())
    with torch.no_grad():
        tuned.model.encoder.layers[0].fc1.weight[0, 0] += 1e-3
    assert same_encoder(model, twin)
    assert not same_encoder(model, tuned)
    assert same_encoder(model, decoder_only())  # has none, so it must use the target's
