"""Loads a head: EAGLE-3 from its folder, or an MTP layer of the target's own checkpoint.

EAGLE-3 (Li et al. 2025, 2503.01840) is read as published in SafeAILab's and SpecForge's form, and vLLM's
`speculators`. Both name the tensors alike; SafeAILab's only layer is `midlayer`, speculators' are
`layers.{i}`. A tap names the layer that a state enters.

Knows names, settings and shapes, and refuses what it does not know by name; nothing of names on the hub, of
text models or of drafting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import LoadError
from ..checkpoint import integer_weights, shapes_in
from ..quantized import floats
from .mtp import mtp_head, mtp_module_head, mtp_prefix
from .records import Head, LeanBody, Taps, TargetShape
from .tensors import (
    PublishedTensors,
    form_of,
    layer_config,
    read_config,
    read_tensors,
    take_layer,
    take_output,
    tapped_layers,
    window_of,
)

LEAN = ("llama", "qwen3")
"""Families of targets whose MTP layer has a lean form."""

OTHERS = {
    "medusa": "Medusa heads",
    "eagle": "EAGLE-1 and EAGLE-2 heads",
    "mlp_speculator": "MLP speculators",
}
"""Heads that are recognised and refused, by `model_type` or `speculators_model_type`."""

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
"""Settings of EAGLE-3 that are true or false."""
EAGLE3_NEUTRAL = (
    "draft_vocab_size",
    "eagle_aux_hidden_state_layer_ids",
    "eagle_config",
    "eagle_decoder_type",
    "embed_requires_grad",
    "has_lm_head",
    "layer_types",
    "max_window_layers",
    "pretraining_tp",
    "rope_scaling",
    "rope_theta",
    "speculators_config",
    "speculators_model_type",
    "speculators_version",
    "target_hidden_size",
    "torch_dtype",
    "use_sliding_window",
)
"""Settings beside those of the layers that are read elsewhere, or change nothing that a head computes."""
STANDARD = {
    "use_aux_hidden_state": "EAGLE-1 and 2 are not supported",
    "use_input_layernorm_in_first_layer": "every EAGLE-3 head has that norm",
    "use_last_layernorm": "every EAGLE-3 head has that norm",
}
"""Settings of ModelOpt's `eagle_config` that are true of every EAGLE-3 head, with what is wrong otherwise."""


def load_head(
    folder: Path, target: TargetShape, name: str, *, device: torch.device, dtype: torch.dtype
) -> Head:
    """The head in a folder, on a device. Raises LoadError, with what does not fit, by name."""
    config = read_config(folder)
    if not is_head(config):
        raise LoadError(f"{name} is no head, but an ordinary model")
    tensors = {
        key: value.to(device, dtype if value.is_floating_point() else None)
        for key, value in read_tensors(folder).items()
    }
    with torch.device(device):
        return eagle3_head(config, tensors, target, name)


def load_mtp(folder: Path, target: Any, shape: TargetShape) -> Head:
    """The MTP layer in the checkpoint of a target, a causal LM of transformers that was loaded from `folder`:
    lean where the target is Llama-like, else of the target's own class. Raises LoadError."""
    config, prefix = read_config(folder), mtp_prefix(shape)
    if config.get("model_type") not in LEAN:
        if integer_weights(folder)[0]:  # transformers reads the file again
            raise LoadError(f"{shape.name}: an MTP layer of this family is not read in 8 bits")
        return mtp_module_head(target, shapes_in(folder), shape.name)
    stored = read_tensors(folder, prefix)
    try:
        stored = floats(stored)
    except ValueError as error:
        raise LoadError(f"{shape.name}: {error}") from error
    tensors = {n: t.to(target.device, target.dtype) for n, t in stored.items()}
    with torch.device(target.device):
        return mtp_head(config, tensors, shape, shape.name)


def described(head: Head) -> str:
    """One line about a head, for people."""
    taps = ", ".join("the last" if i < 0 else str(i) for i in head.taps.layers)
    layers = len(head.body.shapes)
    line = f"{head.family} head of {layers} layer{'s' * (layers != 1)}, reading states {taps}"
    if head.output.ids is not None:
        return f"{line}; proposes {len(head.output.ids):,} tokens"
    return line


def is_head(config: Mapping[str, Any]) -> bool:
    """Whether a folder with this configuration holds a head. Raises LoadError for heads of other kinds."""
    if is_eagle3(config):
        return True
    kind = config.get("speculators_model_type", config.get("model_type"))
    if "dflash_config" in config or "speculators_model_type" in config:
        found = (
            f"speculators of type {kind!r}"
            if "speculators_model_type" in config
            else "DFlash heads"
        )
        raise LoadError(f"{found} are not supported; EAGLE-3 and MTP are")
    if isinstance(kind, str) and kind in OTHERS:
        raise LoadError(f"{OTHERS[kind]} are not supported; EAGLE-3 and MTP are")
    return False


def holds_head(folder: Path) -> bool:
    """The same of a folder. Raises LoadError for a configuration that cannot be read."""
    return is_head(read_config(folder))


def is_eagle3(raw: Mapping[str, Any]) -> bool:
    """Whether a configuration says that it is one."""
    return raw.get("speculators_model_type") == "eagle3" or any(
        "eagle3" in n.lower() or "eaglellama" in n.lower() for n in _architectures(raw)
    )


def _architectures(raw: Mapping[str, Any]) -> list[str]:
    names = raw.get("architectures")
    return [n for n in names if isinstance(n, str)] if isinstance(names, list) else []


def eagle3_head(
    raw: Mapping[str, Any], tensors: Mapping[str, Tensor], target: TargetShape, name: str
) -> Head:
    """The record of a published head. Raises LoadError, with what does not fit, by name."""
    settings, layers = _eagle3_settings(raw, name)
    config = layer_config(layers, name)
    flags = _flags(settings, name)
    known = (*FLAGS, *EAGLE3_NEUTRAL, *STANDARD)
    _check_known({**layers, **settings}, config, known, name)
    width, source = config.hidden_size, settings.get("target_hidden_size") or config.hidden_size
    if source != target.width:
        raise LoadError(
            f"{name} reads states of {source} numbers, and those of {target.name} have {target.width}"
        )
    found = PublishedTensors(tensors, name)
    first = "midlayer." if "midlayer.hidden_norm.weight" in found else "layers.0."
    head = Head(
        family="EAGLE-3",
        taps=_eagle3_taps(settings, found, config, target, flags),
        embed_norm=found.take(f"{first}input_layernorm.weight", width),
        feature_norm=found.take(f"{first}hidden_norm.weight", width),
        body=_eagle3_body(found, first, config),
        embedding=_embedding(found, config, target),
        output=take_output(found, settings, config, target),
        residual_normed=flags["norm_before_residual"],
        feeds_normed=flags["norm_output"],
    )
    found.finish()
    return head


def _eagle3_settings(raw: Mapping[str, Any], name: str) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """A head's settings, and the configuration of its layers: SafeAILab's is one object, `speculators` and
    ModelOpt have objects within it."""
    layers = raw.get("transformer_layer_config") if "speculators_model_type" in raw else raw
    if not isinstance(layers, Mapping):
        raise LoadError(f"{name}: it lacks transformer_layer_config")
    extra = raw.get("eagle_config") or {}
    if not isinstance(extra, Mapping):
        raise LoadError(f"{name}: eagle_config is no object")
    own = {key: value for key, value in raw.items() if key != "transformer_layer_config"}
    return {**extra, **own}, layers


def _flags(settings: Mapping[str, Any], name: str) -> dict[str, bool]:
    flags = {}
    for key in FLAGS:
        value = settings.get(key, False)
        if value not in (True, False, None):
            raise LoadError(f"{name}: {key} is {value!r}, neither true nor false")
        flags[key] = bool(value)
    for key, wrong in STANDARD.items():
        if settings.get(key, True) is not True:
            raise LoadError(f"{name}: {key} is {settings[key]!r}: {wrong}")
    return flags


def _check_known(
    settings: Mapping[str, Any], config: Any, others: Sequence[str], name: str
) -> None:
    """Raises LoadError for a setting that is neither one of the layers' in transformers, nor one of the
    `others` of a head: it may change what is computed, and the head would draft worse without a word."""
    known = {*type(config)().to_dict(), *others} - {"sliding_window"}
    if settings.get("layer_types") or settings.get("use_sliding_window") is False:
        known.add("sliding_window")  # by layer; a window alone would be of all layers, or of none
    for key, value in settings.items():
        if key in known or not value or (key == "parallel_draft_step" and value == 1):
            continue
        raise LoadError(f"{name}: the setting {key} is not known, and may change what it computes")


def _eagle3_taps(
    settings: Mapping[str, Any],
    tensors: PublishedTensors,
    config: Any,
    target: TargetShape,
    flags: Mapping[str, bool],
) -> Taps:
    layers = settings.get("eagle_aux_hidden_state_layer_ids")
    if layers is None:
        layers = [2, target.layers // 2, target.layers - 3]
    layers = tapped_layers(layers, "eagle_aux_hidden_state_layer_ids", target, tensors.name)
    count, source = len(layers), target.width
    norms: tuple[Tensor, ...] = ()
    if flags["norm_before_fc"] and flags["fc_norm"]:
        raise LoadError(f"{tensors.name}: norm_before_fc and fc_norm exclude each other")
    if flags["norm_before_fc"]:
        norms = (tensors.take("input_norm.weight", count * source),)
    if flags["fc_norm"]:
        norms = tuple(tensors.take(f"fc_norm.{i}.weight", source) for i in range(count))
    project = tensors.linear("fc", config.hidden_size, count * source)
    return Taps(layers, float(config.rms_norm_eps), norms, project)


def _eagle3_body(found: PublishedTensors, first: str, config: Any) -> LeanBody:
    """The layers. The first reads embedding and feature side by side, and its norms are the head's."""
    width, count, form = config.hidden_size, config.num_hidden_layers, form_of(config, found.name)
    if first == "midlayer." and count != 1:
        raise LoadError(f"{found.name} has one midlayer, and its configuration {count} layers")
    made = []
    for index in range(count):
        prefix = f"layers.{index}." if index else first
        norm = found.take(f"{prefix}input_layernorm.weight", width) if index else None
        made.append(
            take_layer(
                found,
                prefix,
                config,
                form,
                inputs=width if index else 2 * width,
                input_norm=norm,
                window=window_of(config, index),
            )
        )
    return LeanBody(tuple(made), form)


def _embedding(found: PublishedTensors, config: Any, target: TargetShape) -> Tensor | None:
    """The head's own embeddings; None for the target's."""
    width = config.hidden_size
    embedding = found.take_if("embed_tokens.weight", config.vocab_size, width)
    if embedding is None and width != target.width:
        raise LoadError(f"{found.name} lacks the tensor embed_tokens.weight, and is {width} wide")
    if embedding is not None and config.vocab_size < target.vocab:
        raise LoadError(
            f"{found.name} has embeddings of {config.vocab_size} tokens, and {target.name} has "
            f"{target.vocab}"
        )
    return embedding
