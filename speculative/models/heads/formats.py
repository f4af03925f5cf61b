"""Loads a head from its folder: EAGLE-3, DFlash, or an MTP layer of the target's own checkpoint.

EAGLE-3 (Li et al. 2025, 2503.01840) is read as published in SafeAILab's and SpecForge's form, and vLLM's
`speculators`. Both name the tensors alike; SafeAILab's only layer is `midlayer`, speculators' are
`layers.{i}`. A tap names the layer that a state enters.

DFlash as published by z-lab: a few Qwen 3 layers that draft a block in one pass. z-lab names the layer that a
state leaves, one less than the one it enters. Embeddings and output layer are the target's.

Knows names, settings and shapes, and refuses what it does not know by name; nothing of names on the hub, of
text models or of drafting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import LoadError
from ..checkpoint import integer_weights
from ..quantized import floats
from .mtp import mtp_head, mtp_module_head, mtp_prefix
from .records import LAST, BlockHead, ChainHead, Head, LeanBody, Taps, TargetShape
from .tensors import (
    PublishedTensors,
    form_of,
    layer_config,
    read_config,
    read_tensors,
    take_layer,
    take_output,
    tapped_layers,
    tensor_names,
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

DFLASH_2 = "DFlash2DraftModel"
KNOWN = ("mask_token_id", "target_layer_ids", "block_size")
DFLASH_NEUTRAL = ("draft_arch",)
"""Settings within `dflash_config` that are read, and those that change nothing that a head computes."""
DFLASH_BESIDE = (
    "auto_map",
    "block_size",
    "dflash_config",
    "draft_vocab_size",
    "layer_types",
    "max_window_layers",
    "num_target_layers",
    "rope_scaling",
    "rope_theta",
    "torch_dtype",
    "use_sliding_window",
)
"""The same beside it and those of the layers."""
WINDOW = "sliding_window_non_causal"
SPECULATORS_BLOCKS = ("dflash", "dspark")
"""Types of vLLM's `speculators` whose blocks differ from z-lab's: within a sliding window a query reads only
the block before it, unless `sliding_window_non_causal`, and with `sample_from_anchor`, DSpark's default, the
pending token's position drafts too. Drafted as z-lab's they would be accepted less often without an error."""
LARGEST_BLOCK = 256

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


class HeadFormat(StrEnum):
    """The published formats of heads in folders of their own."""

    EAGLE3 = "EAGLE-3"
    DFLASH = "DFlash"


def load_head(
    folder: Path, target: TargetShape, name: str, *, device: torch.device, dtype: torch.dtype
) -> Head:
    """The head in a folder, on a device. Raises LoadError, with what does not fit, by name."""
    config = read_config(folder)
    found = format_of(config)
    if found is None:
        raise LoadError(f"{name} is no head, but an ordinary model")
    tensors = {
        key: value.to(device, dtype if value.is_floating_point() else None)
        for key, value in read_tensors(folder).items()
    }
    build = eagle3_head if found is HeadFormat.EAGLE3 else dflash_head
    with torch.device(device):
        return build(config, tensors, target, name)


def load_mtp(folder: Path, target: Any, shape: TargetShape) -> ChainHead:
    """The MTP layer in the checkpoint of a target, a causal LM of transformers that was loaded from `folder`:
    lean where the target is Llama-like, else of the target's own class. Raises LoadError."""
    config, prefix = read_config(folder), mtp_prefix(shape)
    if config.get("model_type") not in LEAN:
        if integer_weights(folder)[0]:  # transformers reads the file again
            raise LoadError(f"{shape.name}: an MTP layer of this family is not read in 8 bits")
        return mtp_module_head(target, tensor_names(folder), shape.name)
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
    if isinstance(head, ChainHead) and head.output.ids is not None:
        return f"{line}; proposes {len(head.output.ids):,} tokens"
    return f"{line}; blocks of {head.block}" if isinstance(head, BlockHead) else line


def format_of(config: Mapping[str, Any]) -> HeadFormat | None:
    """The format of a folder with this configuration; None for an ordinary model. Raises LoadError for heads
    of other kinds."""
    if "dflash_config" in config and "speculators_model_type" not in config:
        if DFLASH_2 in _architectures(config):
            raise LoadError(
                "DFlash 2 heads are not supported: they have convolutions and a path selector; "
                "DFlash heads are"
            )
        return HeadFormat.DFLASH
    if is_eagle3(config):
        return HeadFormat.EAGLE3
    kind = config.get("speculators_model_type", config.get("model_type"))
    if isinstance(kind, str) and kind in OTHERS:
        raise LoadError(f"{OTHERS[kind]} are not supported; EAGLE-3, MTP and DFlash are")
    if kind in SPECULATORS_BLOCKS and "speculators_model_type" in config:
        raise LoadError(
            f"speculators of type {kind!r} are not supported: their blocks differ from those of z-lab's "
            "DFlash, which is"
        )
    if "speculators_model_type" in config:
        raise LoadError(f"speculators of type {kind!r} are not supported; EAGLE-3 is")
    return None


def format_in(folder: Path) -> HeadFormat | None:
    """The same of a folder. Raises LoadError for a configuration that cannot be read."""
    return format_of(read_config(folder))


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
) -> ChainHead:
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
    head = ChainHead(
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


def dflash_head(
    raw: Mapping[str, Any], tensors: Mapping[str, Tensor], target: TargetShape, name: str
) -> BlockHead:
    """The record of a published head. Raises LoadError, with what does not fit, by name."""
    own = _dflash_settings(raw, name)
    config = layer_config(raw, name)
    _check_known(raw, config, DFLASH_BESIDE, name)
    if config.hidden_size != target.width:
        raise LoadError(
            f"{name} is {config.hidden_size} wide, and the states of {target.name} are {target.width}"
        )
    count = raw.get("num_target_layers", target.layers)
    if count != target.layers:
        raise LoadError(
            f"{name} is for a target of {count!r} layers, and {target.name} has {target.layers}"
        )
    mask = own.get("mask_token_id")
    if type(mask) is not int or not 0 <= mask < target.vocab:
        raise LoadError(f"{name}: mask_token_id is {mask!r}, of {target.vocab} tokens")
    block = own.get("block_size", raw.get("block_size"))
    if type(block) is not int or not 2 <= block <= LARGEST_BLOCK:
        raise LoadError(f"{name}: block_size is {block!r}; it must be from 2 to {LARGEST_BLOCK}")
    found = PublishedTensors(tensors, name)
    taps = _dflash_taps(own.get("target_layer_ids"), found, config, target)
    body, output = _dflash_body(found, config), take_output(found, raw, config, target)
    found.finish()
    return BlockHead("DFlash", taps, body, output, mask, block)


def _dflash_settings(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    own = raw.get("dflash_config")
    if not isinstance(own, Mapping):
        raise LoadError(f"{name}: dflash_config is no object")
    strange = sorted(k for k in own if k not in (*KNOWN, *DFLASH_NEUTRAL) and own[k])
    if "sliding_attention" in (raw.get("layer_types") or ()) and WINDOW in raw:
        strange.append(WINDOW)  # false says as much as true
    if strange:
        raise LoadError(f"{name}: the setting {strange[0]} of dflash_config is not known")
    return own


def _dflash_taps(layers: Any, tensors: PublishedTensors, config: Any, target: TargetShape) -> Taps:
    left = tapped_layers(layers, "target_layer_ids", target, tensors.name)
    # The state that leaves the last layer is known behind the final norm, as transformers returns it.
    entered = tuple(LAST if i + 1 == target.layers else i + 1 for i in left)
    width = config.hidden_size
    project = tensors.linear("fc", width, len(left) * target.width)
    after = tensors.take("hidden_norm.weight", width)
    return Taps(entered, float(config.rms_norm_eps), (), project, after)


def _dflash_body(found: PublishedTensors, config: Any) -> LeanBody:
    layers, width, form = [], config.hidden_size, form_of(config, found.name)
    for index in range(config.num_hidden_layers):
        prefix = f"layers.{index}."
        norm = found.take(f"{prefix}input_layernorm.weight", width)
        window = window_of(config, index)
        layers.append(
            take_layer(found, prefix, config, form, inputs=width, input_norm=norm, window=window)
        )
    return LeanBody(tuple(layers), form)
