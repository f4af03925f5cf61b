"""MTP layers of a Llama-like target, in the target's own checkpoint: `model.layers.{L + k}` of DeepSeek-V3.

Their first layer is applied again on its own output for every further draft, and the tensors of further
ones are not read. Knows names; nothing of drafting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...errors import LoadError
from .bodies import LeanBody
from .head_record import LAST, ChainHead, Output, Taps, TargetShape
from .published_tensors import PublishedTensors, form_of, layer_config, take_layer


def mtp_layers(raw: Mapping[str, Any]) -> int:
    """How many MTP layers a target's configuration promises."""
    found = raw.get("num_nextn_predict_layers", raw.get("num_mtp_layers", 0))
    return found if type(found) is int and found > 0 else 0


def mtp_prefix(target: TargetShape) -> str:
    """The beginning of the names of the first layer's tensors."""
    return f"model.layers.{target.layers}."


def mtp_head(
    raw: Mapping[str, Any], tensors: Mapping[str, Tensor], target: TargetShape, name: str
) -> ChainHead:
    """The record of the first MTP layer in the tensors of a target's checkpoint; `raw` is the target's
    configuration. Raises LoadError, with what does not fit, by name."""
    prefix = mtp_prefix(target)
    own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    if not mtp_layers(raw) or not own:
        raise LoadError(
            f"{name} has no MTP layer: no num_nextn_predict_layers in its configuration, or no tensors "
            f"{prefix}*"
        )
    found = PublishedTensors(own, name)
    config = layer_config(raw, name)
    width, form = config.hidden_size, form_of(config, name)
    # Copies of the target's embeddings and output layer, which are shared here.
    for shared in ("embed_tokens.weight", "shared_head.head.weight"):
        found.take_if(shared, target.vocab, width)
    input_norm = found.take("input_layernorm.weight", width)
    layer = take_layer(found, "", config, form, inputs=width, input_norm=input_norm, window=None)
    head = ChainHead(
        family="MTP",
        taps=Taps((LAST,), form.eps),
        embed_norm=found.take("enorm.weight", width),
        feature_norm=found.take("hnorm.weight", width),
        body=LeanBody((layer,), form),
        output=Output(found.take("shared_head.norm.weight", width), form.eps),
        join=found.linear("eh_proj", width, 2 * width),
        feeds_normed=True,
    )
    found.finish()
    return head
