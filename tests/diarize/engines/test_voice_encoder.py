"""The speaker encoder's file: 8-bit integers are read as the floats that they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from forescribe.asr.errors import ModelError
from forescribe.diarize.engines.voice_encoder import NAME, load, weights
from forescribe.speculative.models.hub import FOLDER
from forescribe.speculative.models.quantized import float_weights, stored_int8
from training.speakers.encoder import HALVES

SPEAKERS = FOLDER / "speakers"


def test_the_bundled_encoder_is_stored_in_8_bits_but_for_what_reads_the_mel_power() -> None:
    stored = load_file(SPEAKERS / NAME)
    matrices = {n for n, t in stored.items() if t.dim() > 1}
    assert {n for n in matrices if stored[n].dtype is not torch.int8} == HALVES
    model = load(SPEAKERS).state_dict()
    assert all(torch.equal(model[n], t.float()) for n, t in float_weights(SPEAKERS).items())


def test_storing_it_again_changes_no_integer(tmp_path: Path) -> None:
    before = load_file(SPEAKERS / NAME)
    again = stored_int8(weights(SPEAKERS), HALVES)
    assert again.keys() == before.keys()
    assert all(torch.equal(again[n], t) for n, t in before.items() if t.dtype is not torch.float32)


def test_floats_are_read_too(tmp_path: Path) -> None:
    floats = {name: tensor.half() for name, tensor in weights(SPEAKERS).items()}
    save_file(floats, tmp_path / NAME)
    model = load(tmp_path).state_dict()
    assert all(torch.equal(model[name], tensor.float()) for name, tensor in floats.items())


def test_integers_without_scales_are_named(tmp_path: Path) -> None:
    stored = load_file(SPEAKERS / NAME)
    with safe_open(SPEAKERS / NAME, framework="pt") as file:
        metadata = file.metadata()
    del stored["lstm.weight_hh_l1_scale"]
    save_file(stored, tmp_path / NAME, metadata)
    with pytest.raises(ModelError, match="lstm.weight_hh_l1 is of type I8 without scales"):
        load(tmp_path)
