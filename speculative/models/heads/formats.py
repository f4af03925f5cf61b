"""Loads a head: EAGLE-3 from its folder, or an MTP layer of the target's own checkpoint.

EAGLE-3 (Li et al. 2025, 2503.01840) is read as published in SafeAILab's and SpecForge's form, and vLLM's
`speculators`. Both name the tensors alike; SafeAILab's only layer is `midlayer`, speculators' are
`layers.{i}`. A tap names the layer that a state enters.

An MTP layer is `model.layers.{L + k}` of DeepSeek-V3. Of a Llama-like target it is read by its names
(`mtp_head`). Of others (DeepSeek-V3, GLM-4.5) it is a layer of the target's own class (`mtp_module_head`):
transformers knows how such checkpoints name their layers and pack their experts, and builds and loads them.
The first layer is applied again on its own output for every further draft, and further ones are not used.

Knows names, settings and shapes, and refuses what it does not know by name; nothing of names on the hub, of
text models or of drafting.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import LoadError, one_line
from ..checkpoint import integer_weights, shapes_in
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


def holds_head(folder: Path) -> bool:
    """Whether a folder holds a head, by its configuration. Raises LoadError for heads of other kinds, and for
    a configuration that cannot be read."""
    config = read_config(folder)
    names = str(config.get("architectures")).lower()
    speculators = config.get("speculators_model_type")
    if speculators == "eagle3" or "eagle3" in names or "eaglellama" in names:
        return True
    kind = config.get("model_type")
    if "speculators_model_type" in config:
        found = f"speculators of type {speculators!r}"
    elif "dflash_config" in config:
        found = "DFlash heads"
    elif isinstance(kind, str) and kind in OTHERS:
        found = OTHERS[kind]
    else:
        return False
    raise LoadError(f"{found} are not supported; EAGLE-3 and MTP are")


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
    setting, name = "eagle_aux_hidden_state_layer_ids", tensors.name
    layers = settings.get(setting)
    if layers is None:
        layers = [2, target.layers // 2, target.layers - 3]
    if not isinstance(layers, list) or not layers or any(type(i) is not int for i in layers):
        raise LoadError(f"{name}: {setting} is {layers!r}, no list of layers")
    for layer in layers:
        if not 0 <= layer < target.layers:
            raise LoadError(
                f"{name} reads layer {layer}, and {target.name} has {target.layers} layers"
            )
    if len(set(layers)) < len(layers):
        raise LoadError(f"{name}: {setting} names a layer twice: {layers}")
    count, source = len(layers), target.width
    norms: tuple[Tensor, ...] = ()
    if flags["norm_before_fc"] and flags["fc_norm"]:
        raise LoadError(f"{name}: norm_before_fc and fc_norm exclude each other")
    if flags["norm_before_fc"]:
        norms = (tensors.take("input_norm.weight", count * source),)
    if flags["fc_norm"]:
        norms = tuple(tensors.take(f"fc_norm.{i}.weight", source) for i in range(count))
    project = tensors.linear("fc", config.hidden_size, count * source)
    return Taps(tuple(layers), float(config.rms_norm_eps), norms, project)


def _eagle3_body(found: PublishedTensors, first: str, config: Any) -> LeanBody:
    """The layers. The first reads embedding and feature side by side, and its norms are the head's."""
    width, count, rotary = (
        config.hidden_size,
        config.num_hidden_layers,
        rotary_of(config, found.name),
    )
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
                inputs=width if index else 2 * width,
                input_norm=norm,
                window=window_of(config, index),
            )
        )
    return LeanBody(tuple(made), config, rotary)


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
