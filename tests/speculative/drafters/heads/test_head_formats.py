"""Heads from their folders: saved and loaded alike in each format, and refused by name where they do not
fit."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from forescribe.speculative.errors import LoadError
from forescribe.speculative.models.heads.formats import described, holds_head, load_head, mtp_head
from forescribe.speculative.models.heads.records import LAST, Head, LeanBody
from forescribe.speculative.models.heads.tensors import read_tensors
from tests.speculative.drafters.heads import published

from . import tiny_heads
from .tiny_heads import KEPT, Made

CPU = torch.device("cpu")


def load(folder: Path, model: Any = None, dtype: torch.dtype = torch.float32) -> Head:
    shape = tiny_heads.shape(model or tiny_heads.target())
    return load_head(folder, shape, "head", device=CPU, dtype=dtype)


def same(one: Head, other: Head) -> bool:
    """Whether two records hold equal tensors and settings."""
    return _flat(one) == _flat(other)


def _flat(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.tolist()
    if isinstance(value, tuple | list):
        return [_flat(v) for v in value]
    if isinstance(value, torch.nn.Module):
        return _flat(list(value.buffers()))
    if hasattr(value, "__dataclass_fields__"):
        return {name: _flat(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


MADE: dict[str, Callable[[Any], Made]] = {
    "SafeAILab": tiny_heads.eagle3,
    "speculators": lambda model: tiny_heads.eagle3(model, speculators=True, norm_output=True),
    "speculators, 2 layers": lambda model: tiny_heads.eagle3(model, speculators=True, layers=2),
}


@pytest.mark.parametrize("kind", MADE)
def test_each_format_is_loaded_as_it_was_saved(kind: str, tmp_path: Path) -> None:
    made = MADE[kind](tiny_heads.target())
    published.save(tmp_path, made.config, made.tensors)
    assert holds_head(tmp_path)
    assert same(load(tmp_path), made.head)


def test_pickled_tensors_and_shards_are_the_same_head(tmp_path: Path) -> None:
    made = tiny_heads.eagle3(tiny_heads.target())
    pickled, sharded = tmp_path / "bin", tmp_path / "shards"
    for folder in (pickled, sharded):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(made.config))
    torch.save(made.tensors, pickled / "pytorch_model.bin")
    names = sorted(made.tensors)
    parts = {"a.safetensors": names[:4], "b.safetensors": names[4:]}
    for name, held in parts.items():
        save_file({n: made.tensors[n].contiguous() for n in held}, sharded / name)
    index = {n: name for name, held in parts.items() for n in held}
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert same(load(pickled), made.head) and same(load(sharded), made.head)


def test_mtp_layers_are_found_among_the_targets_tensors() -> None:
    model = tiny_heads.target()
    made = tiny_heads.mtp(model)
    whole = {**model.state_dict(), **made.tensors}
    assert same(mtp_head(made.config, whole, tiny_heads.shape(model), "target"), made.head)
    assert made.head.taps.layers == (LAST,)
    with pytest.raises(LoadError, match=r"target has no MTP layer.*model\.layers\.8\."):
        mtp_head(made.config, model.state_dict(), tiny_heads.shape(model), "target")


def test_layers_are_named_by_entering() -> None:
    model = tiny_heads.target()
    assert tiny_heads.eagle3(model).head.taps.layers == (2, 4, 5)  # 2, L // 2, L - 3


def test_offsets_lead_to_the_tokens_that_are_proposed() -> None:
    head = tiny_heads.eagle3(tiny_heads.target()).head
    assert head.output.ids is not None and tuple(head.output.ids.tolist()) == KEPT


def test_settings_of_modelopt_are_those_of_every_eagle3_head(tmp_path: Path) -> None:
    model = tiny_heads.target()
    made = tiny_heads.eagle3(model)
    standard = dict.fromkeys(
        ("use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm"), True
    )
    layers = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5], "parallel_draft_step": 1}
    config = {**made.config, "eagle_config": {**standard, **layers}}
    assert same(load(published.save(tmp_path, config, made.tensors)), made.head)


def test_embeddings_of_its_own_are_used_and_those_of_the_target_otherwise(tmp_path: Path) -> None:
    model = tiny_heads.target()
    made = tiny_heads.eagle3(model)
    assert isinstance(made.head, Head) and made.head.embedding is None
    own = {**made.tensors, "embed_tokens.weight": torch.randn(60, 16)}
    found = load(published.save(tmp_path, made.config, own))
    assert isinstance(found, Head) and found.embedding is not None
    assert found.embedding.equal(own["embed_tokens.weight"])


def test_layers_may_read_a_window(tmp_path: Path) -> None:
    made = tiny_heads.eagle3(tiny_heads.target(), speculators=True, layers=2)
    kinds = ["sliding_attention", "full_attention"]
    layers = {**made.config["transformer_layer_config"], "layer_types": kinds, "sliding_window": 3}
    config = {**made.config, "transformer_layer_config": layers}
    found = load(published.save(tmp_path, config, made.tensors))
    assert isinstance(found.body, LeanBody)
    assert [layer.window for layer in found.body.layers] == [3, None]


def test_a_head_says_what_it_is() -> None:
    model = tiny_heads.target()
    assert described(tiny_heads.eagle3(model).head) == (
        "EAGLE-3 head of 1 layer, reading states 2, 4, 5; proposes 30 tokens"
    )


def test_weights_are_kept_in_the_targets_dtype(tmp_path: Path) -> None:
    made = tiny_heads.eagle3(tiny_heads.target())
    found = load(published.save(tmp_path, made.config, made.tensors), dtype=torch.bfloat16)
    assert found.output.norm.dtype == torch.bfloat16
    assert found.output.ids is not None and found.output.ids.dtype == torch.int64


# -- refusals -------------------------------------------------------------------------------------------

Change = Callable[[dict[str, Any], dict[str, Tensor]], None]


def _set(**values: Any) -> Change:
    return lambda config, tensors: config.update(values)


def _without(name: str) -> Change:
    def change(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        del tensors[name]

    return change


def _tensor(name: str, value: Tensor) -> Change:
    return lambda config, tensors: tensors.update({name: value})


EAGLE3_REFUSALS: dict[str, tuple[Change, str]] = {
    "width": (_set(hidden_size=32), r"reads states of 32 numbers.*have 16"),
    "wider states": (_set(target_hidden_size=24), r"reads states of 24 numbers.*have 16"),
    "layer": (_set(eagle_aux_hidden_state_layer_ids=[2, 4, 8]), r"layer 8, and target has 8"),
    "another count of taps": (
        _set(eagle_aux_hidden_state_layer_ids=[1, 2]),
        r"fc.weight has the shape",
    ),
    "offsets outside": (
        _tensor("d2t", torch.full((30,), 55)),
        r"proposes tokens outside of the 60",
    ),
    "offsets twice": (_tensor("d2t", -torch.arange(30)), r"or one of them twice"),
    "offsets that are none": (
        _tensor("d2t", torch.rand(30)),
        r"d2t is no vector of 30 whole numbers",
    ),
    "too few offsets": (_tensor("d2t", torch.zeros(3).long()), r"d2t is no vector of 30"),
    "no offsets": (_without("d2t"), r"lacks the tensor d2t"),
    "no output layer": (_without("lm_head.weight"), r"lacks the tensor lm_head.weight"),
    "a tensor less": (
        _without("midlayer.mlp.up_proj.weight"),
        r"lacks the tensor midlayer\.mlp\.up",
    ),
    "a tensor more": (_tensor("extra.weight", torch.ones(2)), r"not known: extra\.weight"),
    "whole numbers": (
        _tensor("norm.weight", torch.ones(16).long()),
        r"norm\.weight holds torch\.int64",
    ),
    "another family": (_set(model_type="mamba"), r"layers of 'mamba' are not supported"),
    "heads": (_set(num_key_value_heads=3), r"has the shape|not valid"),
    "layers": (_set(num_hidden_layers=2), r"one midlayer, and its configuration 2"),
    "no layers": (_set(eagle_aux_hidden_state_layer_ids="all"), r"configuration is not valid"),
    "long texts": (_set(rope_scaling={"rope_type": "dynamic", "factor": 2.0}), r"'dynamic'"),
    "few embeddings": (
        _tensor("embed_tokens.weight", torch.ones(7, 16)),
        r"embed_tokens\.weight has the shape \[7, 16\]",
    ),
}


@pytest.mark.parametrize("what", EAGLE3_REFUSALS)
def test_what_does_not_fit_is_refused_by_name(what: str, tmp_path: Path) -> None:
    change, message = EAGLE3_REFUSALS[what]
    made = tiny_heads.eagle3(tiny_heads.target())
    config, tensors = dict(made.config), dict(made.tensors)
    change(config, tensors)
    with pytest.raises(LoadError, match=message):
        load(published.save(tmp_path, config, tensors))


@pytest.mark.parametrize(
    "config",
    [{"model_type": "medusa"}, {"dflash_config": {}}, {"speculators_model_type": "peagle"}],
)
def test_heads_of_other_kinds_are_refused(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(LoadError, match="it is a head of type .*; EAGLE-3 and MTP are supported"):
        holds_head(tmp_path)


def test_an_ordinary_model_is_no_head(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert not holds_head(tmp_path)
    with pytest.raises(LoadError, match="head is no head, but an ordinary model"):
        load(tmp_path)


# -- hostile files --------------------------------------------------------------------------------------


class _Touch:
    """Would make a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    made, touched = tiny_heads.eagle3(tiny_heads.target()), tmp_path / "touched"
    (tmp_path / "config.json").write_text(json.dumps(made.config))
    for write in (torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))):
        write({"norm.weight": _Touch(touched)}, tmp_path / "pytorch_model.bin")
        with pytest.raises(LoadError, match="something other than tensors") as refused:
            load(tmp_path)
        assert not touched.exists()
        advice = str(refused.value)  # torch's would be to load it without protection
        assert "weights_only" not in advice and "could run code" in advice


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, {1: torch.ones(1)}])
def test_a_pickle_of_anything_else_is_refused(value: Any, tmp_path: Path) -> None:
    torch.save(value, tmp_path / "pytorch_model.bin")
    with pytest.raises(LoadError, match="something other than tensors"):
        read_tensors(tmp_path)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff" * 8, (10**15).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"[]"],
)
def test_damaged_safetensors_are_named(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(LoadError, match=r"model\.safetensors is damaged"):
        read_tensors(tmp_path)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a\\b", "x/y"])
def test_an_index_reads_its_own_folder_only(name: str, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"norm.weight": name}}))
    with pytest.raises(LoadError, match="holds something other|holds no weights"):
        read_tensors(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", "\udcff", "[" * 200_000, '{"a": NaN'])
def test_damaged_configurations_are_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(LoadError, match=r"config\.json"):
        holds_head(tmp_path)


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="holds no weights"):
        read_tensors(tmp_path)
