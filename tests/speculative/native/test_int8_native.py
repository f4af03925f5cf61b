"""Native decoders with matrices of 8-bit integers: against torch's integers, and against themselves."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.speculative import Engine, Fixed, ModelDrafter, Request
from forescribe.speculative.models.modules import WhisperDecoder
from forescribe.speculative.models.quantized import int8_product, quantize_causal, quantize_whisper
from forescribe.speculative.native.decoder import NativeCausalDecoder, NativeWhisperDecoder
from forescribe.speculative.native.library import load, missing
from tests.speculative.models.causal_lms import EOS, causal_lm

from . import cases
from .cases import POSITIONS, SLOTS, Shape, prefill, states, tokens

pytestmark = pytest.mark.native

NAMES = [] if missing() else load().instruction_sets()
shapes = st.builds(
    Shape,
    heads=st.integers(1, 3),
    size=st.sampled_from([8, 16, 24, 64]),
    layers=st.integers(1, 2),
    inner=st.sampled_from([8, 24, 72]),
    sources=st.sampled_from([1, 9, 50]),
    activation=st.sampled_from(["gelu", "relu"]),
)
STORAGES = (torch.float32, torch.bfloat16)


@functools.cache
def whisper(shape: Shape) -> Any:
    made = copy.deepcopy(cases.model(shape))
    quantize_whisper(made)
    return made


@functools.cache
def causal(family: str) -> Any:
    made = copy.deepcopy(causal_lm(family))
    quantize_causal(made)
    return made


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12, deadline=None)
@given(shapes, st.integers(1, 3), st.integers(1, 13), st.sampled_from(STORAGES))
@torch.inference_mode()
def test_a_product_has_the_bits_of_torchs_integers(name, shape, batch, nodes, stored):
    """On every instruction set: the head's logits of the states that the kernels themselves returned."""
    load().choose(name)
    try:
        native = NativeWhisperDecoder(whisper(shape), stored=stored)
        native.tap((-1,))
        native.allocate(batch, SLOTS)
        prefill(native, shape, batch, 3)
        scores = native.score(tokens(batch, nodes), torch.arange(batch) % 2 + 2, reach=SLOTS)
    finally:
        load().choose(None)
    head = whisper(shape).proj_out
    assert torch.equal(
        scores.logits,
        int8_product(scores.taps[:, :, 0].contiguous(), head.weight, head.scale, None),
    )


@settings(max_examples=20, deadline=None)
@given(shapes, st.integers(1, 7), st.integers(1, 2), st.sampled_from(STORAGES))
@torch.inference_mode()
def test_a_rows_bits_depend_neither_on_the_batch_nor_on_nodes_nor_on_threads(
    shape: Shape, batch: int, threads: int, stored: torch.dtype
) -> None:
    together, alone = (NativeWhisperDecoder(whisper(shape), stored=stored) for _ in range(2))
    together.allocate(batch, SLOTS)
    alone.allocate(1, SLOTS)
    known, new, start = tokens(batch, 4), tokens(batch, 12, 3), torch.arange(batch) % 3 + 2
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        prefill(together, shape, batch, 4)
        scored = together.score(new, start, reach=SLOTS).logits
    finally:
        torch.set_num_threads(before)
    for row in range(batch):
        encoder = states(shape, batch)[row : row + 1]
        alone.prefill(torch.tensor([0]), known[row : row + 1], encoder)
        for node in range(new.shape[1]):
            one = alone.score(new[row, node, None, None], start[row, None] + node, reach=SLOTS)
            assert torch.equal(one.logits[0, 0], scored[row, node])


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["llama", "qwen2", "qwen3", "mistral with a window"]),
    st.integers(1, 7),
    st.integers(1, 2),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_a_causal_rows_bits_depend_on_nothing_else_either(family, batch, threads, stored):
    generator = torch.Generator().manual_seed(3)
    new = torch.randint(0, 60, (batch, 12), generator=generator)
    known = torch.randint(0, 60, (batch, 6), generator=generator)
    start, before = torch.arange(batch) % 3 + 2, torch.get_num_threads()
    together, alone = (NativeCausalDecoder(causal(family), stored=stored) for _ in range(2))
    together.allocate(batch, SLOTS)
    alone.allocate(1, SLOTS)
    try:
        torch.set_num_threads(threads)
        together.prefill(torch.arange(batch), known, [None] * batch)
        scored = together.score(new, start, reach=SLOTS).logits
    finally:
        torch.set_num_threads(before)
    for row in range(batch):
        alone.prefill(torch.tensor([0]), known[row : row + 1], [None])
        for node in range(new.shape[1]):
            one = alone.score(new[row, node, None, None], start[row, None] + node, reach=SLOTS)
            assert torch.equal(one.logits[0, 0], scored[row, node])


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_logits_are_nearer_to_the_quantised_modules_than_those_are_to_float32(name):
    """Where a number lies at the border of two integers, another rounding of its last bit takes the other
    one: engines differ by that, and not by more."""
    shape = Shape(heads=3, size=64, inner=320, sources=50, layers=2)
    load().choose(name)
    try:
        found = []
        for decoder in (
            NativeWhisperDecoder(whisper(shape)),
            WhisperDecoder(whisper(shape)),
            WhisperDecoder(cases.model(shape)),
        ):
            decoder.allocate(3, SLOTS)
            prefill(decoder, shape, 3, 9)
            start = torch.tensor([5, 9, 7])
            found.append(decoder.score(tokens(3, 6), start, reach=SLOTS).logits)
    finally:
        load().choose(None)
    native, modules, exact = found
    gap, rounding = ((a - modules).square().mean().sqrt() / modules.std() for a in (native, exact))
    assert gap < rounding < 0.1


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.sampled_from(STORAGES))
def test_drafts_change_no_token_of_a_quantised_target(batch, gamma, stored):
    """Several rounds of ragged rows, with a draft in float32 that is often wrong."""
    shape = Shape(size=32, inner=64)

    def written(gamma: int, batch: int) -> dict[int, tuple[int, ...]]:
        draft = NativeWhisperDecoder(cases.model(Shape(size=32, inner=64)))
        engine = Engine(
            NativeWhisperDecoder(whisper(shape), stored=stored),
            ModelDrafter(draft) if gamma else None,
            batch=batch,
            eos=[EOS],
            schedule=Fixed(gamma),
        )
        work = [
            Request(
                prompt=tuple(tokens(1, 2 + i, seed=i)[0].tolist()),
                encoder_states=states(shape, 1, seed=i)[0],
                max_new_tokens=POSITIONS - 12 - i,
                tag=i,
            )
            for i in range(6)
        ]
        return {r.request.tag: r.tokens for r in engine.run(work)}

    plain = written(0, 1)
    assert written(gamma, batch) == plain and sum(map(len, plain.values())) > 30
