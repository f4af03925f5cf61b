"""Weights in 8 bits are read as the floats that they stand for, in folders of targets and of drafts."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import WhisperForCausalLM, WhisperForConditionalGeneration

from forescribe.asr.errors import ModelError
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.speculative.device import choose
from forescribe.speculative.model_engines import ModelEngine
from forescribe.speculative.models.checkpoint import POSITIONS
from forescribe.speculative.models.quantized import BORROWED, as_floats, float_weights, sinusoids
from tests.asr.model import folders
from training.stored import stored_int8

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    """A Whisper of random weights, in 8 bits."""
    folder = folders.write(tmp_path_factory.mktemp("stored") / "target")
    save_file(stored_int8(load_file(folder / WEIGHTS)), folder / WEIGHTS, {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def draft(stored, tmp_path_factory) -> Path:
    """Its decoder as a draft, without the embeddings."""
    folder = folders.write(tmp_path_factory.mktemp("lacking") / "draft")
    target = load(Pair(stored), choose("cpu"), modules=True).target
    made = WhisperForCausalLM(target.config)
    made.model.decoder.load_state_dict(target.model.decoder.state_dict())
    made.save_pretrained(folder)
    own = {n: t for n, t in load_file(folder / WEIGHTS).items() if n not in BORROWED}
    save_file(stored_int8(own), folder / WEIGHTS, {"format": "pt"})
    return folder


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 3), st.integers(0, 2**31))
def test_every_number_is_half_a_step_from_its_own_at_most(
    tmp_path_factory, rows, columns, deep, seed
):
    folder = tmp_path_factory.mktemp("numbers")
    generator = torch.Generator().manual_seed(seed)
    weights = {
        "a.weight": torch.randn(rows, columns, deep, generator=generator),
        "a.bias": torch.randn(rows, generator=generator),
        "zeros.weight": torch.zeros(rows, columns),
    }
    save_file(stored_int8(weights), folder / WEIGHTS)
    found = float_weights(folder)
    assert found.keys() == weights.keys()
    step = weights["a.weight"].abs().amax((1, 2), keepdim=True) / 127
    assert ((found["a.weight"] - weights["a.weight"]).abs() <= 0.501 * step).all()
    assert torch.equal(found["a.bias"], weights["a.bias"].half())
    assert not found["zeros.weight"].any()


def test_reading_and_storing_again_changes_nothing(stored):
    before = load_file(stored / WEIGHTS)
    again = stored_int8(float_weights(stored))
    assert again.keys() == before.keys()
    integers = [name for name, tensor in before.items() if tensor.dtype is torch.int8]
    assert integers and all(torch.equal(again[name], before[name]) for name in integers)


def test_positions_that_are_sinusoids_are_not_stored(stored, tmp_path):
    folder = Path(shutil.copytree(stored, tmp_path / "folder"))
    weights = float_weights(stored)
    published = sinusoids(*weights[POSITIONS].shape)
    save_file(stored_int8(weights | {POSITIONS: published}), folder / WEIGHTS, {"format": "pt"})
    assert POSITIONS not in load_file(folder / WEIGHTS)
    found = float_weights(folder)[POSITIONS]
    loaded = load(Pair(folder), choose("cpu"), modules=True).target
    assert loaded.get_parameter(POSITIONS).equal(found)
    step = published.abs().amax(1, keepdim=True) / 127
    assert ((found - published).abs() <= 0.501 * step).all()
    # Radford et al. 2022; openai/whisper: periods from 2 pi to 20,000 pi.
    width = published.shape[1]
    assert published[1, 0] == pytest.approx(math.sin(1), abs=1e-3)
    assert published[7, width // 2 - 1] == pytest.approx(math.sin(7 / 10_000), abs=1e-6)
    assert published[0, width // 2 :].eq(1).all()


@pytest.mark.parametrize("modules", [False, True])
def test_a_model_is_loaded_as_the_floats_that_its_integers_stand_for(stored, tmp_path, modules):
    ours = load(Pair(stored), choose("cpu"), engine=ModelEngine.LEAN, modules=modules).target
    plain = as_floats(stored, tmp_path / "plain")
    theirs = WhisperForConditionalGeneration.from_pretrained(plain)
    assert theirs.dtype is torch.float32
    numbers = theirs.state_dict()
    assert all(torch.equal(tensor, numbers[name]) for name, tensor in ours.state_dict().items())
    settings, expected = ours.generation_config.to_dict(), theirs.generation_config.to_dict()
    assert settings == expected if modules else settings.items() <= expected.items()
    assert as_floats(plain, tmp_path / "never") == plain


def test_a_draft_has_the_embeddings_that_it_lacks_from_its_target(stored, draft, tmp_path):
    whisper = load(Pair(stored, draft), choose("cpu"), engine=ModelEngine.LEAN)
    assert whisper.shared_encoder
    theirs = WhisperForCausalLM.from_pretrained(as_floats(draft, tmp_path / "draft", stored))
    numbers = theirs.state_dict()
    for name in BORROWED:
        assert torch.equal(numbers[name], whisper.target.state_dict()[name])
    for name, tensor in whisper.drafts[0].model.state_dict().items():
        assert torch.equal(tensor, numbers[name]), name


def test_a_draft_without_embeddings_is_no_target(draft):
    with pytest.raises(ModelError, match="it has no encoder, so it can only be a --draft"):
        load(Pair(draft), choose("cpu"))


def test_embeddings_of_another_width_are_refused(stored, draft, tmp_path):
    wide = folders.write(tmp_path / "wide", d_model=64)
    with pytest.raises(ModelError, match="reads encoder states of"):
        load(Pair(wide, draft), choose("cpu"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("model.decoder.embed_tokens.weight_scale"), "of type I8 without scales"),
        (
            lambda t: t.update({"model.decoder.embed_tokens.weight_scale": torch.ones(3)}),
            r"rows, and its scales are \[3\]",
        ),
    ],
)
def test_scales_that_are_missing_or_too_few_are_named(stored, tmp_path, change, said):
    folder = folders.write(tmp_path / "broken")
    tensors = load_file(stored / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    with pytest.raises(ModelError, match=said):
        load(Pair(folder), choose("cpu"))


@pytest.mark.weights
def test_the_bundled_numbers_are_the_published_ones_rounded():
    from forescribe.asr.model.presets import locate
    from forescribe.speculative.models import hub
    from tests.real import TINY, model

    source = locate(model(TINY), network=False)
    published = load_file(source / WEIGHTS)
    expected, found = stored_int8(published), load_file(hub.path("tiny.en") / WEIGHTS)
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())
    ours = json.loads((hub.path("tiny.en") / "generation_config.json").read_text())
    theirs = json.loads((source / "generation_config.json").read_text())
    assert ours == theirs
