"""Instruction sets with a fused multiply-add give the same bits, in float32 and in int8; plain code, which
rounds twice, gives them to rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.speculative import ModelDrafter
from forescribe.speculative.models.quantized import int8_encoder
from forescribe.speculative.native.adapters import NativeEncoder
from forescribe.speculative.native.library import load, missing

from . import cases
from .cases import SLOTS, Kind, Shape, decoder, shapes, states_of, tokens
from .test_native_encoder import encoder, features

NAMES = [] if missing() else load().instruction_sets()
FUSED = [name for name in NAMES if name != "generic"]

pytestmark = pytest.mark.native
several = pytest.mark.skipif(len(FUSED) < 2, reason="this machine has no two such sets")

families = st.sampled_from(["llama", "qwen2 with a window", "qwen3"])


def on_each(names: list[str], run: Callable[[], Any]) -> list[Any]:
    library, found = load(), []
    try:
        for name in names:
            library.choose(name)
            found.append(run())
    finally:
        library.choose(None)
    return found


def logits(made: Any, kind: Kind, nodes: int) -> list[torch.Tensor]:
    """Of a prompt, and of tokens behind it."""
    made.allocate(2, SLOTS)
    known = made.prefill(torch.arange(2), tokens(2, 7, 2), states_of(kind, 2)).logits
    return [known, made.score(tokens(2, nodes), torch.tensor([6, 7]), reach=SLOTS).logits]


def assert_equal(found: list[list[torch.Tensor]]) -> None:
    for each in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], each, strict=True))


@several
@pytest.mark.parametrize("kinds", [shapes, families], ids=["whisper", "text"])
@pytest.mark.parametrize("quantized", [False, True], ids=["floats", "integers"])
@settings(max_examples=15, deadline=None)
@given(data=st.data(), nodes=st.integers(1, 13))
@torch.inference_mode()
def test_logits_have_the_same_bits(kinds, quantized, data, nodes):
    kind = data.draw(kinds)
    made = decoder(kind, quantized=quantized)
    assert_equal(on_each(FUSED, lambda: logits(made, kind, nodes)))


@several
@pytest.mark.parametrize("quantized", [False, True], ids=["floats", "integers"])
@settings(max_examples=10, deadline=None)
@given(
    heads=st.integers(1, 2),
    size=st.sampled_from([8, 24, 64]),
    inner=st.sampled_from([8, 40]),
    sources=st.sampled_from([1, 15, 49, 513]),
)
@torch.inference_mode()
def test_encoder_states_have_the_same_bits(quantized, **shape):
    modules = encoder(**shape)
    made = NativeEncoder(int8_encoder(modules) if quantized else modules)
    assert_equal(on_each(FUSED, lambda: made(features(2, modules))))


@several
@pytest.mark.parametrize("quantized", [False, True], ids=["floats", "integers"])
def test_rounds_with_drafts_have_the_same_tokens_and_log_probabilities(quantized):
    target = decoder(Shape(), quantized=quantized)
    draft = decoder(Shape(layers=1), quantized=quantized)

    def run() -> list[Any]:
        results, _ = cases.decoded(target, ModelDrafter(draft), 4)
        assert any(r.accepted for r in results.values())
        return [(r.tokens, r.logprobs, r.rounds, r.accepted) for r in results.values()]

    first, *others = on_each(FUSED, run)
    assert sum(len(tokens) for tokens, *_ in first) > 40
    assert all(found == first for found in others)


@pytest.mark.parametrize("kind", [Shape(size=64, inner=128, sources=50), "qwen3"], ids=str)
@pytest.mark.skipif(len(NAMES) < 2, reason="this machine has plain code alone")
@torch.inference_mode()
def test_plain_code_agrees_to_rounding(kind: Kind):
    made = decoder(kind)
    *fused, plain = on_each(NAMES, lambda: logits(made, kind, 6))
    for found in fused:
        torch.testing.assert_close(found, plain, atol=2e-4, rtol=1e-4)
