"""A folder's weights have one door: what is read has transformers' bits, and native kernels alone keep it."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import WhisperForConditionalGeneration

from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.speculative.device import choose
from forescribe.speculative.errors import LoadError
from forescribe.speculative.model_engines import ModelEngine
from forescribe.speculative.models.plain import MANY
from forescribe.speculative.native.library import missing
from tests.asr.model import folders

CPU = choose("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return folders.write(tmp_path_factory.mktemp("door") / "target")


@torch.inference_mode()
def read(model: torch.nn.Module) -> list[torch.Tensor]:
    """What encoder, decoder and output layer compute, with attention of few queries over many keys too."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn((2, 80, 3000), generator=generator)
    states = model.model.encoder(features.to(model.dtype)).last_hidden_state
    assert states.shape[1] >= MANY
    tokens = torch.randint(100, (2, 9), generator=generator)
    hidden = model.model.decoder(
        input_ids=tokens, encoder_hidden_states=states, use_cache=False
    ).last_hidden_state
    return [states, hidden, model.proj_out(hidden)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("activation", ["gelu", "relu", "gelu_new"])
def test_plain_modules_have_the_bits_of_transformers(tmp_path, dtype, activation) -> None:
    made = folders.write(tmp_path / "made", activation_function=activation)
    device = choose("cpu", dtype)
    ours = load(Pair(made), device, engine=ModelEngine.LEAN).target
    theirs = load(Pair(made), device, engine=ModelEngine.LEAN, modules=True).target
    assert isinstance(theirs, WhisperForConditionalGeneration)
    for mine, other in zip(read(ours), read(theirs), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("form", ["bin", "settings", "unknown setting", "own head"])
def test_other_forms_of_a_folder_are_read(folder, tmp_path, form) -> None:
    made = folders.write(tmp_path / "made")
    weights = load_file(made / "model.safetensors")
    settings = json.loads((made / "config.json").read_text())
    if form == "bin":
        torch.save(weights, made / "pytorch_model.bin")
        (made / "model.safetensors").unlink()
    elif form == "settings":
        for key in ("max_source_positions", "activation_function"):  # those of its default
            settings.pop(key, None)
    elif form == "unknown setting":
        settings["somebodys_own"] = 3
    else:
        embedding = weights["model.decoder.embed_tokens.weight"]
        save_file({**weights, "proj_out.weight": 2 * embedding}, made / "model.safetensors")
    (made / "config.json").write_text(json.dumps(settings))
    model, plain = (load(Pair(f), CPU, engine=ModelEngine.LEAN).target for f in (made, folder))
    factor = 2 if form == "own head" else 1
    for mine, other, times in zip(read(model), read(plain), (1, 1, factor), strict=True):
        torch.testing.assert_close(mine, times * other)


@pytest.mark.skipif(missing() is not None, reason="the kernels are not compiled")
def test_where_kernels_compute_the_modules_hold_no_weights(folder) -> None:
    whisper = load(Pair(folder), CPU)
    held = {
        p.untyped_storage().data_ptr(): p.untyped_storage().nbytes()
        for p in whisper.target.parameters()
    }
    assert whisper.engine == "native" and sum(held.values()) < 1000
    whisper.decoder().allocate(1, 8)  # as they were packed, again and again
    with pytest.raises(LoadError, match="packed for native kernels alone"):
        read(whisper.target)
    owner = weakref.ref(whisper.target)
    del whisper
    gc.collect()
    assert owner() is None
