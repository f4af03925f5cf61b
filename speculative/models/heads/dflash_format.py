"""DFlash heads as published by z-lab: a few Qwen 3 layers that draft a block in one pass.

z-lab names the layer that a state leaves, one less than the one it enters. Embeddings and output layer are
the target's. Knows names and settings; nothing of drafting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...errors import LoadError
from .bodies import LeanBody
from .head_record import LAST, BlockHead, Taps, TargetShape
from .published_tensors import (
    PublishedTensors,
    form_of,
    layer_config,
    take_layer,
    take_output,
    tapped_layers,
    window_of,
)

KNOWN = ("mask_token_id", "target_layer_ids", "block_size")
NEUTRAL = ("draft_arch",)
LARGEST_BLOCK = 256


def is_dflash(raw: Mapping[str, Any]) -> bool:
    """Whether a configuration says that it is one."""
    return "dflash_config" in raw


def dflash_head(
    raw: Mapping[str, Any], tensors: Mapping[str, Tensor], target: TargetShape, name: str
) -> BlockHead:
    """The record of a published head. Raises LoadError, with what does not fit, by name."""
    own = _settings(raw, name)
    config = layer_config(raw, name)
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
    taps = _taps(own.get("target_layer_ids"), found, config, target)
    body, output = _body(found, config), take_output(found, raw, config, target)
    found.finish()
    return BlockHead("DFlash", taps, body, output, mask, block)


def _settings(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    own = raw.get("dflash_config")
    if not isinstance(own, Mapping):
        raise LoadError(f"{name}: dflash_config is no object")
    strange = sorted(k for k in own if k not in (*KNOWN, *NEUTRAL) and own[k])
    strange += [k for k in ("markov_rank", "enable_confidence_head") if raw.get(k)]
    if strange:
        raise LoadError(f"{name}: the setting {strange[0]} of dflash_config is not known")
    return own


def _body(found: PublishedTensors, config: Any) -> LeanBody:
    layers, width, form = [], config.hidden_size, form_of(config, found.name)
    for index in range(config.num_hidden_layers):
        prefix = f"layers.{index}."
        norm = found.take(f"{prefix}input_layernorm.weight", width)
        window = window_of(config, index)
        layers.append(
            take_layer(found, prefix, config, form, inputs=width, input_norm=norm, window=window)
        )
    return LeanBody(tuple(layers), form)


def _taps(layers: Any, tensors: PublishedTensors, config: Any, target: TargetShape) -> Taps:
    left = tapped_layers(layers, "target_layer_ids", target, tensors.name)
    # The state that leaves the last layer is known behind the final norm, as transformers returns it.
    entered = tuple(LAST if i + 1 == target.layers else i + 1 for i in left)
    width = config.hidden_size
    project = tensors.linear("fc", width, len(left) * target.width)
    after = tensors.take("hidden_norm.weight", width)
    return Taps(entered, float(config.rms_norm_eps), (), project, after)
