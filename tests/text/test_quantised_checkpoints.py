"""Checkpoints in published quantised formats, read by their own libraries: the text is `generate`'s."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from forescribe.speculative.errors import LoadError
from forescribe.speculative.models import hub
from forescribe.speculative.models.quantized import as_floats
from forescribe.text.generator import TextGenerator
from forescribe.text.streaming import Options

PROMPTS = ("The meeting on Tuesday", "Once upon a time", "She opened the door and")
TOKENS = 40

pytestmark = [
    # Advice of these libraries to their own users.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def stored(model: Any, folder: Path) -> Path:
    """The model in a folder, with the tokenizer of the bundled one."""
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(hub.path("text")).save_pretrained(folder)
    return folder


def plain(folder: Path) -> Path:
    """The bundled model in a folder beside this one, for transformers alone."""
    return as_floats(hub.path("text"), folder.with_name("plain"))


def by_torchao(folder: Path, *, activations: bool = False) -> Path:
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    from transformers import TorchAoConfig

    kind = "Int8DynamicActivationInt8WeightConfig" if activations else "Int8WeightOnlyConfig"
    config = TorchAoConfig(getattr(quantization, kind)())
    model = AutoModelForCausalLM.from_pretrained(
        plain(folder), dtype=torch.float32, quantization_config=config
    )
    return stored(model, folder)


def by_compressed_tensors(folder: Path) -> Path:
    quantization = pytest.importorskip(
        "compressed_tensors.quantization", reason="compressed-tensors is not installed"
    )
    from compressed_tensors.compressors import ModelCompressor

    model = AutoModelForCausalLM.from_pretrained(plain(folder), dtype=torch.float32)
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    quantization.apply_quantization_config(
        model,
        quantization.QuantizationConfig(
            config_groups={"group_0": {"targets": ["Linear"], "weights": weights}},
            ignore=["lm_head"],
            format="pack-quantized",
        ),
    )
    for module in model.modules():
        if hasattr(module, "weight_scale"):
            module.weight_scale.data = module.weight.data.abs().amax(1, keepdim=True) / 127
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    stored(model, folder)
    compressor.update_config(str(folder))
    return folder


@pytest.mark.parametrize("write", [by_torchao, by_compressed_tensors])
def test_quantised_weights_give_the_text_of_generate(write: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "quantised")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.inference_mode():
            answer = model.generate(ids, do_sample=False, max_length=ids.shape[1] + TOKENS)
        expected.append(tuple(answer[0, ids.shape[1] :].tolist()))
    shutil.copytree(hub.path("text-draft"), tmp_path / "draft")
    for gamma, batch in ((0, 1), (4, 1), (4, 4)):
        generator = TextGenerator.load(folder, tmp_path / "draft", batch=batch, gamma=gamma)
        assert generator.target.engine == "modules"
        made = [c.ids for c in generator.generate(PROMPTS, Options(max_tokens=TOKENS))]
        assert made == expected
        if gamma:
            assert generator.stats.accepted > 0


def test_quantised_activations_are_refused_by_name(tmp_path: Path) -> None:
    """They are rounded by a forward's own numbers, which differ in the last bit with its shape."""
    folder = by_torchao(tmp_path / "quantised", activations=True)
    with pytest.raises(LoadError, match=r"is not supported: logits .*take its plain weights"):
        TextGenerator.load(folder)
