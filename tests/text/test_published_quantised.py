"""Checkpoints that were published in a quantised form which transformers reads alone."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from forescribe.speculative.device import choose
from forescribe.speculative.errors import LoadError
from forescribe.speculative.model_engines import ModelEngine, causal_decoder
from forescribe.text.language_model import load
from tests.speculative.models.families import tiny

from . import language_models


def test_fp8_weights_are_a_float_target_on_a_cpu(tmp_path):
    folder = language_models.write(tmp_path / "model")
    file, weights = folder / "config.json", folder / "model.safetensors"
    config, tensors = json.loads(file.read_text(encoding="utf-8")), load_file(weights)
    block = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    file.write_text(json.dumps({**config, "quantization_config": block}), encoding="utf-8")
    wanted = {}
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        scale = (tensors[name].abs().max() / 448).reshape(1, 1)  # 448: the largest number of e4m3
        stored = (tensors[name] / scale).to(torch.float8_e4m3fn)
        tensors |= {name: stored, f"{name}_scale_inv": scale}
        wanted[name] = stored.float() * scale
    save_file(tensors, weights, metadata={"format": "pt"})
    model = load(folder, choose("cpu")).model
    found = dict(model.named_parameters())
    assert wanted and all(torch.equal(found[name], each) for name, each in wanted.items())
    causal_decoder(model)  # which compares it with the model's plain forward


class Packed(Tensor):
    """A weight of a class of its own, as torchao's are."""


def test_weights_of_another_class_are_run_by_the_modules_alone():
    model = tiny("llama")
    projection = model.base_model.layers[0].self_attn.o_proj
    weight = torch.nn.Parameter(projection.weight.detach().as_subclass(Packed), requires_grad=False)
    assert type(weight).__name__ == "Packed"
    projection.weight = weight
    assert causal_decoder(model).engine == "modules"
    told = "native engine has no form of this llama: its weights are Packed"
    with pytest.raises(LoadError, match=told):
        causal_decoder(model, engine=ModelEngine.NATIVE)
