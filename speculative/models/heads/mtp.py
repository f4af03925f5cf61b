"""MTP layers in their target's own checkpoint: `model.layers.{L + k}` of DeepSeek-V3.

Of a Llama-like target the layer is read by its names (`mtp_head`). Of others (DeepSeek-V3, GLM-4.5) it is a
layer of the target's own class (`mtp_module_head`): transformers knows how such checkpoints name their layers
and pack their experts, and builds and loads them. The first layer is applied again on its own output for
every further draft, and further ones are not used. Knows names and transformers' MTP model; nothing of
drafting.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from ...errors import LoadError, one_line
from ..slot_model import LayerShape
from ..weights import Linear
from .records import LAST, Head, LeanBody, ModuleBody, Output, Taps, TargetShape
from .tensors import PublishedTensors, form_of, layer_config, take_layer


def mtp_head(
    raw: Mapping[str, Any], tensors: Mapping[str, Tensor], target: TargetShape, name: str
) -> Head:
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
    head = Head(
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


def mtp_layers(raw: Mapping[str, Any]) -> int:
    """How many MTP layers a target's configuration promises."""
    found = raw.get("num_nextn_predict_layers", raw.get("num_mtp_layers", 0))
    return found if type(found) is int and found > 0 else 0


def mtp_prefix(target: TargetShape) -> str:
    """The beginning of the names of the first layer's tensors."""
    return f"model.layers.{target.layers}."


def mtp_module_head(target: Any, names: Collection[str], name: str) -> Head:
    """The record of the first MTP layer in the checkpoint that `target`, a causal LM of transformers, was
    loaded from; `names` are its tensors. Raises LoadError where there is none, or where it is no
    layer of plain keys and values."""
    config = target.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise LoadError(
            f"{name} has layers of {', '.join(sorted(kinds))}: an MTP layer beside them is not supported, as "
            "recurrent state cannot be rolled back"
        )
    keys = ("num_mtp_layers", "num_nextn_predict_layers")
    count = next((found for key in keys if (found := getattr(config, key, None))), None)
    if not count and any(n.startswith("mtp.") for n in names):
        count = 1  # Qwen's configurations do not say
    if not count:
        raise LoadError(f"{name} has no MTP layer: no num_nextn_predict_layers in its config.json")
    config.num_mtp_layers = count
    if getattr(config, "layer_types", None):
        config.mtp_layer_types = ["full_attention"] * count
    try:
        with torch.no_grad():
            return _head(published_layers(target), target, name)
    except (torch.OutOfMemoryError, MemoryError, LoadError):
        raise
    except Exception as error:  # a family that transformers has no MTP form of fails in many ways
        raise LoadError(
            f"{name}: its MTP layer cannot be loaded ({type(error).__name__}: {one_line(error)})"
        ) from error


def published_layers(target: Any) -> Any:
    """transformers' MTP model of a target, with the weights of its checkpoint.

    It looks for the tensors that the target's class ignores, whose names contain the depth of the published
    models: for the call, the target names those of its own depth.
    """
    from transformers.modeling_layers import MtpModel

    config = target.config.get_text_config()
    first = config.num_hidden_layers
    layers = "|".join(str(first + k) for k in range(config.num_mtp_layers))
    target._keys_to_ignore_on_load_unexpected = [rf"(?:^|\.)layers\.(?:{layers})\.", r"^mtp\."]
    try:
        return MtpModel.from_pretrained(target).to(target.device, target.dtype).eval()
    finally:
        del target._keys_to_ignore_on_load_unexpected


def effective(norm: Any, width: int, eps: float, target: Any) -> Tensor:
    """What an RMS norm multiplies by: the weight, or 1 + w in Qwen's and Gemma's. It is the norm of ones,
    which are normal already."""
    ones = torch.ones(width, device=target.device, dtype=torch.float32)
    found: Tensor = norm.float()(ones) * (1 + eps) ** 0.5
    norm.to(target.dtype)
    return found.to(target.dtype)


def _head(made: Any, target: Any, name: str) -> Head:
    layer, config = made.layers[0], target.config.get_text_config()
    if not made.use_post_norm or getattr(made.config, "mtp_hidden_states_first", False):
        raise LoadError(f"{name}: MTP layers of {config.model_type} are not supported")
    if made.rotary_emb is None or made.has_per_layer_rope:
        raise LoadError(f"{name}: MTP layers of {config.model_type} have other positions")
    eps = float(config.rms_norm_eps)
    body = ModuleBody(layer.mtp_block, made.rotary_emb, _shape(layer.mtp_block, made, name))
    return Head(
        family="MTP",
        taps=Taps((LAST,), eps),
        embed_norm=effective(layer.enorm, config.hidden_size, eps, target),
        feature_norm=effective(layer.hnorm, config.hidden_size, eps, target),
        body=body,
        output=Output(effective(layer.post_norm, config.hidden_size, eps, target), eps),
        join=Linear(layer.eh_proj.weight, layer.eh_proj.bias),
        feeds_normed=True,
    )


def _shape(block: Any, made: Any, name: str) -> LayerShape:
    """The keys and values of a layer, from those of one token."""
    from transformers.cache_utils import DynamicCache

    cache = DynamicCache()
    token = torch.zeros((1, 1, made.config.hidden_size), device=made.device, dtype=made.dtype)
    place = torch.zeros((1, 1), dtype=torch.int64, device=made.device)
    block(
        token,
        attention_mask=None,
        position_ids=place,
        position_embeddings=made.rotary_emb(token, position_ids=place),
        past_key_values=cache,
    )
    keys, values = (getattr(cache.layers[0], part, None) for part in ("keys", "values"))
    if not isinstance(keys, Tensor) or not isinstance(values, Tensor) or keys.dim() != 4:
        raise LoadError(f"{name}: its MTP layer keeps no plain keys and values")
    return LayerShape(keys.shape[1], keys.shape[3], values.shape[3])
