"""Loads a head: EAGLE-3 from its folder, or an MTP layer of the target's own checkpoint.

EAGLE-3 (Li et al. 2025, 2503.01840) is read as published in SafeAILab's and SpecForge's form, and vLLM's
`speculators`. Both name the tensors alike; SafeAILab's only layer is `midlayer`, speculators' are
`layers.{i}`. A tap names the layer that a state enters.

An MTP layer is `model.layers.{L + k}` of DeepSeek-V3. Of a Llama-like target it is read by its names
(`mtp_head`). Of others (DeepSeek-V3, GLM-4.5) it is a layer of the target's own class (`mtp_module_head`):
transformers knows how such checkpoints name their layers and pack their experts, and builds and loads them.
The first layer is applied again on its own output for every further draft, and further ones are not used.

Knows names, settings and shapes; nothing of names on the hub, of text models or of drafting.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import LoadError, one_line
from ..checkpoint import in_integers, tensor_names
from ..quantized import floats
from ..slot_model import LayerShape
from ..weights import Linear
from .records import LAST, Head, LeanBody, ModuleBody, Output, Taps, TargetShape
from .tensors import (
    PublishedTensors,
    layer_config,
    read_config,
    read_tensors,
    rotary_of,
    take_layer,
    take_output,
)

LEAN = ("llama", "qwen3")
"""Families of targets whose MTP layer has a lean form."""

OTHERS = ("medusa", "eagle", "mlp_speculator")
"""The `model_type` of heads that are recognised and refused."""


def load_head(
    folder: Path, target: TargetShape, name: str, *, device: torch.device, dtype: torch.dtype
) -> Head:
    """The head in a folder, on a device. Raises LoadError, with what does not fit, by name."""
    if not holds_head(folder):
        raise LoadError(f"{name} is no head, but an ordinary model")
    tensors = {
        key: value.to(device, dtype if value.is_floating_point() else None)
        for key, value in read_tensors(folder).items()
    }
    with torch.device(device):
        return eagle3_head(read_config(folder), tensors, target, name)


def load_mtp(folder: Path, target: Any, shape: TargetShape) -> Head:
    """The MTP layer in the checkpoint of a target, a causal LM of transformers that was loaded from `folder`:
    lean where the target is Llama-like, else of the target's own class. Raises LoadError."""
    config, prefix = read_config(folder), mtp_prefix(shape)
    if config.get("model_type") not in LEAN:
        if in_integers(folder):  # transformers reads the file again
            raise LoadError(f"{shape.name}: an MTP layer of this family is not read in 8 bits")
        return mtp_module_head(target, tensor_names(folder), shape.name)
    stored = floats(read_tensors(folder, prefix))
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


def holds_head(folder: Path) -> bool:
    """Whether a folder holds an EAGLE-3 head, by its configuration. Raises LoadError for heads of other
    kinds, and for a configuration that cannot be read."""
    config = read_config(folder)
    names = str(config.get("architectures")).lower()
    kind = config.get("speculators_model_type", config.get("model_type"))
    if kind == "eagle3" or "eagle3" in names or "eaglellama" in names:
        return True
    if kind in OTHERS or {"speculators_model_type", "dflash_config"} & config.keys():
        raise LoadError(f"it is a head of type {kind!r}; EAGLE-3 and MTP are supported")
    return False


def eagle3_head(
    raw: Mapping[str, Any], tensors: Mapping[str, Tensor], target: TargetShape, name: str
) -> Head:
    """The record of a published head. Raises LoadError, with what does not fit, by name."""
    try:
        return _eagle3_head(raw, tensors, target, name)
    except LoadError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LoadError(f"{name}: its configuration is not valid: {one_line(error)}") from error


def _eagle3_head(
    raw: Mapping[str, Any], tensors: Mapping[str, Tensor], target: TargetShape, name: str
) -> Head:
    # SafeAILab's configuration is one object; speculators and ModelOpt have objects within it.
    layers = raw["transformer_layer_config"] if "speculators_model_type" in raw else raw
    settings = {**(raw.get("eagle_config") or {}), **raw}
    config = layer_config(layers, name)
    width, source = config.hidden_size, settings.get("target_hidden_size") or config.hidden_size
    if source != target.width:
        raise LoadError(
            f"{name} reads states of {source} numbers, and those of {target.name} have {target.width}"
        )
    found = PublishedTensors(tensors, name)
    first = "midlayer." if "midlayer.hidden_norm.weight" in found else "layers.0."
    head = Head(
        family="EAGLE-3",
        taps=_eagle3_taps(settings, found, config, target),
        embed_norm=found.take(f"{first}input_layernorm.weight", width),
        feature_norm=found.take(f"{first}hidden_norm.weight", width),
        body=_eagle3_body(found, first, config),
        embedding=_embedding(found, config, target),
        output=take_output(found, settings, config, target),
        residual_normed=bool(settings.get("norm_before_residual")),
        feeds_normed=bool(settings.get("norm_output")),
    )
    found.finish()
    return head


def _eagle3_taps(
    settings: Mapping[str, Any], tensors: PublishedTensors, config: Any, target: TargetShape
) -> Taps:
    layers = settings.get("eagle_aux_hidden_state_layer_ids")
    if layers is None:
        layers = [2, target.layers // 2, target.layers - 3]
    for layer in layers:
        if not 0 <= layer < target.layers:
            raise LoadError(
                f"{tensors.name} reads layer {layer}, and {target.name} has {target.layers} layers"
            )
    count, source = len(layers), target.width
    norms: tuple[Tensor, ...] = ()
    if settings.get("norm_before_fc"):
        norms = (tensors.take("input_norm.weight", count * source),)
    elif settings.get("fc_norm"):
        norms = tuple(tensors.take(f"fc_norm.{i}.weight", source) for i in range(count))
    project = tensors.linear("fc", config.hidden_size, count * source)
    return Taps(tuple(layers), float(config.rms_norm_eps), norms, project)


def _eagle3_body(found: PublishedTensors, first: str, config: Any) -> LeanBody:
    """The layers. The first reads embedding and feature side by side, and its norms are the head's."""
    width, count = config.hidden_size, config.num_hidden_layers
    if first == "midlayer." and count != 1:
        raise LoadError(f"{found.name} has one midlayer, and its configuration {count} layers")
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * count
    made = []
    for index in range(count):
        prefix = f"layers.{index}." if index else first
        norm = found.take(f"{prefix}input_layernorm.weight", width) if index else None
        made.append(
            take_layer(
                found,
                prefix,
                config,
                inputs=width if index else 2 * width,
                input_norm=norm,
                window=config.sliding_window if kinds[index] == "sliding_attention" else None,
            )
        )
    return LeanBody(tuple(made), config, rotary_of(config, found.name))


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


def mtp_head(
    raw: Mapping[str, Any], tensors: Mapping[str, Tensor], target: TargetShape, name: str
) -> Head:
    """The record of the first MTP layer in the tensors of a target's checkpoint; `raw` is the target's
    configuration. Raises LoadError, with what does not fit, by name."""
    prefix = mtp_prefix(target)
    own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    count = raw.get("num_nextn_predict_layers", raw.get("num_mtp_layers", 0))
    if type(count) is not int or count < 1 or not own:
        raise LoadError(
            f"{name} has no MTP layer: no num_nextn_predict_layers in its configuration, or no tensors "
            f"{prefix}*"
        )
    found = PublishedTensors(own, name)
    config = layer_config(raw, name)
    width, eps, rotary = config.hidden_size, float(config.rms_norm_eps), rotary_of(config, name)
    # Copies of the target's embeddings and output layer, which are shared here.
    for shared in ("embed_tokens.weight", "shared_head.head.weight"):
        found.take_if(shared, target.vocab, width)
    input_norm = found.take("input_layernorm.weight", width)
    layer = take_layer(found, "", config, inputs=width, input_norm=input_norm, window=None)
    head = Head(
        family="MTP",
        taps=Taps((LAST,), eps),
        embed_norm=found.take("enorm.weight", width),
        feature_norm=found.take("hnorm.weight", width),
        body=LeanBody((layer,), config, rotary),
        output=Output(found.take("shared_head.norm.weight", width), eps),
        join=found.linear("eh_proj", width, 2 * width),
        feeds_normed=True,
    )
    found.finish()
    return head


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
            return _module_head(published_layers(target), target, name)
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


def _module_head(made: Any, target: Any, name: str) -> Head:
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
    """The keys and values of a layer."""
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
    shape = LayerShape.of(cache.layers[0])
    if shape is None:
        raise LoadError(f"{name}: its MTP layer keeps no plain keys and values")
    return shape
