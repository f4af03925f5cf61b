"""Folders of causal language models in 8 bits are read as the floats that they stand for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from forescribe.speculative.device import choose
from forescribe.speculative.errors import LoadError
from forescribe.speculative.models.heads.formats import load_mtp
from forescribe.speculative.models.heads.records import TargetShape
from forescribe.speculative.models.quantized import as_floats
from forescribe.text.generator import TextGenerator
from forescribe.text.language_model import load
from forescribe.text.streaming import Options
from tests.speculative.drafters.heads import published
from tests.text.language_models import write
from training.stored import stored_int8

WEIGHTS = "model.safetensors"
PROMPTS = ["the other", "on and on and on"]


def stored(folder: Path, **more: torch.Tensor) -> Path:
    """The folder with its weights in 8 bits, and more tensors."""
    weights = stored_int8(load_file(folder / WEIGHTS))
    save_file(weights | more, folder / WEIGHTS, {"format": "pt"})
    return folder


@pytest.mark.parametrize("family", ["llama", "gemma", "gpt2"])
def test_a_folder_is_loaded_as_the_floats_that_its_integers_stand_for(tmp_path, family):
    folder = stored(write(tmp_path / family, family=family))
    ours = load(folder, choose("cpu")).model
    theirs = AutoModelForCausalLM.from_pretrained(as_floats(folder, tmp_path / "plain"))
    assert type(ours) is type(theirs) and ours.dtype is theirs.dtype is torch.float32
    numbers = theirs.state_dict()
    assert ours.state_dict().keys() == numbers.keys()
    assert all(torch.equal(tensor, numbers[name]) for name, tensor in ours.state_dict().items())
    assert ours.generation_config.to_dict() == theirs.generation_config.to_dict()


def test_a_pair_of_such_folders_writes_the_texts_of_its_floats(tmp_path):
    target = stored(write(tmp_path / "target"))
    draft = stored(write(tmp_path / "draft", seed=1))
    plain = as_floats(target, tmp_path / "plain")
    texts = [
        [text.ids for text in generator.generate(PROMPTS, Options(max_tokens=12))]
        for generator in (
            TextGenerator.load(target, draft, gamma=3, batch=2, device="cpu"),
            TextGenerator.load(plain, None, gamma=0, device="cpu"),
        )
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda t: t.pop("model.layers.0.mlp.up_proj.weight_scale"),
            "model.layers.0.mlp.up_proj.weight is of type I8 without scales",
        ),
        (
            lambda t: t.update({"model.layers.0.mlp.up_proj.weight_scale": torch.ones(3)}),
            r"model.layers.0.mlp.up_proj.weight has 24 rows, and its scales are \[3\]",
        ),
        (lambda t: t.pop("model.norm.weight"), "its weights lack model.norm.weight"),
    ],
    ids=["no scales", "too few scales", "no weight"],
)
@pytest.mark.parametrize("role", ["model", "draft"])
def test_what_is_missing_is_named(tmp_path, change, said, role):
    folder = stored(write(tmp_path / "broken"))
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    with pytest.raises(LoadError, match=f"--{role} .*broken cannot be loaded .*{said}"):
        load(folder, choose("cpu"), role=role)


@pytest.mark.parametrize(
    ("family", "setting", "count", "said"),
    [
        (
            "llama",
            "num_hidden_layers",
            1,
            r"have model.layers.1\.\S+, a layer more than its config.json",
        ),
        ("gpt2", "n_layer", 1, r"have transformer.h.1\.\S+, a layer more than its config.json"),
        ("llama", "num_hidden_layers", 10**6, "says 1000000 layers of width"),
        ("gpt2", "n_layer", 10**6, "says 1000000 layers of width"),
    ],
)
def test_a_number_of_layers_that_is_not_that_of_the_weights_is_refused(
    tmp_path, family, setting, count, said
):
    folder = write(tmp_path / "folder", family=family)
    config = json.loads((folder / "config.json").read_text())
    config.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(config | {setting: count}))
    with pytest.raises(LoadError, match=f"--model .*folder cannot be loaded .*{said}"):
        load(folder, choose("cpu"))


@pytest.mark.parametrize("kind", [torch.uint8, torch.bool])
def test_masks_that_are_stored_as_bytes_are_no_weights(tmp_path, kind):
    """GPT-NeoX's causal masks have the name of a bias."""
    folder = write(tmp_path / "masked")
    mask = torch.ones(1, 1, 8, 8).tril().to(kind)
    weights = load_file(folder / WEIGHTS) | {"model.layers.0.self_attn.bias": mask}
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    load(folder, choose("cpu"))


def test_an_mtp_layer_in_such_a_folder_is_read_as_floats(tmp_path):
    folder = write(tmp_path / "target")
    target = load(folder, choose("cpu")).model
    config = target.config
    _, tensors = published.mtp(config, inner=24)
    settings = config.to_dict() | {"num_nextn_predict_layers": 1}
    shape = TargetShape("t", config.hidden_size, config.num_hidden_layers, config.vocab_size)
    both = []
    for name, kept in (("floats", tensors), ("integers", stored_int8(tensors))):
        published.save(tmp_path / name, settings, kept)
        both.append(load_mtp(tmp_path / name, target, shape))
    floats, integers = (head.join.weight for head in both)
    assert integers.dtype is torch.float32
    step = floats.abs().amax(1, keepdim=True) / 127
    assert ((integers - floats).abs() <= 0.501 * step).all()


def test_an_mtp_layer_that_transformers_would_read_is_refused_in_8_bits(tmp_path):
    folder = stored(write(tmp_path / "target", family="gemma"))
    target = load(folder, choose("cpu")).model
    config = target.config
    shape = TargetShape("t", config.hidden_size, config.num_hidden_layers, config.vocab_size)
    with pytest.raises(LoadError, match="t: an MTP layer of this family is not read in 8 bits"):
        load_mtp(folder, target, shape)
