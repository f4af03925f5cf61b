"""Models in bfloat16 with every instruction set, also the one that multiplies bfloat16.

The truth is the modules over the same rounded weights in float32, and the measure is how far transformers'
modules in bfloat16 lie from it.
"""

from __future__ import annotations

import copy

import pytest
import torch

from forescribe.speculative.device import Device
from forescribe.speculative.model_engines import ModelEngine
from forescribe.speculative.models.hub import path
from forescribe.speculative.models.modules import WhisperDecoder
from forescribe.speculative.native.adapters import NativeEncoder, NativeWhisperDecoder
from forescribe.text import TextGenerator
from forescribe.text.language_model import load as load_text
from forescribe.text.streaming import Options

from . import cases
from .cases import SLOTS, Shape, prefill, tokens
from .test_native_encoder import encoder, features

pytestmark = pytest.mark.native

HALF = torch.bfloat16


def distance(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found.float() - truth).square().mean().sqrt() / truth.std())


@torch.inference_mode()
def test_encoder_states_are_nearer_to_the_truth_than_the_modules(instruction_set):
    half = encoder(3, 64, inner=320, sources=530).to(HALF)
    windows = features(2, half).to(HALF)
    truth = copy.deepcopy(half).float()(windows.float()).last_hidden_state
    found = torch.stack(NativeEncoder(half)(windows))
    assert found.dtype is HALF
    assert 0 < distance(found, truth) < distance(half(windows).last_hidden_state, truth) < 0.1


@torch.inference_mode()
def test_whisper_logits_are_nearer_to_the_truth_than_the_modules(instruction_set):
    shape = Shape(heads=2, size=64, inner=320, sources=90)
    half = copy.deepcopy(cases.model(shape)).to(HALF)
    found = []
    for decoder in (
        NativeWhisperDecoder(half),
        WhisperDecoder(half),
        WhisperDecoder(copy.deepcopy(half).float()),
    ):
        decoder.pick = lambda states, dtype=decoder.dtype: states.to(HALF).to(dtype)
        decoder.allocate(3, SLOTS)
        prefill(decoder, shape, 3, 9)
        start = torch.tensor([5, 9, 7])
        found.append(decoder.score(tokens(3, 6), start, reach=SLOTS).logits)
    ours, modules, truth = found
    assert 0 < distance(ours, truth) < distance(modules, truth) < 0.1


def test_texts_of_several_rounds_are_those_of_plain_decoding(instruction_set):
    """Drafts and batches change no token of a target in bfloat16: its logits do not depend on them."""
    device = Device("cpu", HALF)
    target, draft = (
        load_text(path(name), device, engine=ModelEngine.NATIVE) for name in ("text", "text-draft")
    )
    questions = ("Write the minutes of the sales meeting on March 3.", 'Define "song".')
    prompts = [[{"role": "user", "content": question}] for question in questions]
    found = []
    for batch, gamma in ((1, 0), (2, 4), (2, 7)):
        made = TextGenerator(
            target, draft if gamma else None, device=device, batch=batch, gamma=gamma
        )
        found.append([c.ids for c in made.generate(prompts, Options(max_tokens=50))])
        assert made.engine.target.engine == "native"
    assert sum(map(len, found[0])) > 40  # several rounds
    assert found[1] == found[0] and found[2] == found[0]
