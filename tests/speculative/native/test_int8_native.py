"""Native decoders with matrices of 8-bit integers: against torch's integers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.speculative.models.modules import WhisperDecoder
from forescribe.speculative.models.quantized import int8_product
from forescribe.speculative.native.adapters import NativeWhisperDecoder
from forescribe.speculative.native.library import load, missing

from . import cases
from .cases import SLOTS, Shape, integers, prefill, shapes, tokens

pytestmark = pytest.mark.native

NAMES = [] if missing() else load().instruction_sets()
STORAGES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12, deadline=None)
@given(shapes, st.integers(1, 3), st.integers(1, 13), st.sampled_from(STORAGES))
@torch.inference_mode()
def test_a_product_has_the_bits_of_torchs_integers(name, shape, batch, nodes, stored):
    """On every instruction set: the head's logits of the states that the kernels themselves returned."""
    load().choose(name)
    try:
        native = NativeWhisperDecoder(integers(shape), stored=stored)
        native.tap((-1,))
        native.allocate(batch, SLOTS)
        prefill(native, shape, batch, 3)
        scores = native.score(tokens(batch, nodes), torch.arange(batch) % 2 + 2, reach=SLOTS)
    finally:
        load().choose(None)
    head = integers(shape).proj_out
    assert torch.equal(
        scores.logits,
        int8_product(scores.taps[:, :, 0].contiguous(), head.weight, head.scale, None),
    )


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
            NativeWhisperDecoder(integers(shape)),
            WhisperDecoder(integers(shape)),
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
