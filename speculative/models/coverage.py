"""Which transformers models have a lean form: by type, and by the modules that they are made of.

A form computes what transformers' modules compute, so anything that it does not know must keep it from being
used: another module, quantised projections, hooks. Each function returns the reason, or None.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from . import plain
from .quantized import Int8Linear

CAUSAL = frozenset(
    {"cwm", "llama", "ministral", "mistral", "qwen2", "qwen3", "seed_oss", "smollm3"}
)
"""Types whose modules differ from Llama's only in biases, norms of queries and keys, windows, and layers
without positions."""

FIXED_ROTATIONS = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary frequencies that do not depend on a text's length."""

_BODY = {"embed_tokens", "layers", "norm", "rotary_emb"}
_LAYER = {"input_layernorm", "mlp", "post_attention_layernorm", "self_attn"}
_PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


def whisper_gap(model: Any) -> str | None:
    """Why a Whisper has no lean form."""
    decoder = model.model.decoder
    if isinstance(decoder, plain.Decoder):
        return _foreign([decoder, model.proj_out])
    from transformers.models.whisper.modeling_whisper import WhisperDecoder, WhisperDecoderLayer

    if type(decoder) is not WhisperDecoder:
        return f"its decoder is a {type(decoder).__name__}"
    strange = {type(layer).__name__ for layer in decoder.layers} - {WhisperDecoderLayer.__name__}
    if strange:
        return f"its layers are {', '.join(sorted(strange))}"
    return _foreign([decoder, model.proj_out])


def encoder_gap(encoder: Any) -> str | None:
    """Why a Whisper's encoder has no form of plain weights."""
    if isinstance(encoder, plain.Encoder) and len(encoder.layers):
        return _foreign([encoder])
    from transformers.models.whisper.modeling_whisper import WhisperEncoder, WhisperEncoderLayer

    if type(encoder) is not WhisperEncoder:
        return f"it is a {type(encoder).__name__}"
    kinds = {type(layer) for layer in encoder.layers} - {WhisperEncoderLayer}
    kinds |= {type(conv) for conv in (encoder.conv1, encoder.conv2)} - {torch.nn.Conv1d}
    if kinds or not len(encoder.layers):
        return f"it is made of {', '.join(sorted(kind.__name__ for kind in kinds)) or 'no layers'}"
    return _foreign([encoder])


def causal_gap(model: Any) -> str | None:
    """Why a causal LM has no lean form."""
    config, body = model.config.get_text_config(), model.base_model
    if config.model_type not in CAUSAL:
        return f"{config.model_type} has none"
    if config is not model.config or not _named(body, _BODY) or not hasattr(model, "lm_head"):
        return "its body is not Llama's"
    rotation = getattr(body.rotary_emb, "rope_type", None)
    if not isinstance(rotation, str) or rotation not in FIXED_ROTATIONS:
        return f"its rotary positions are {rotation}"
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention", "sliding_attention"}:
        return f"it has layers of {', '.join(sorted(kinds))}"
    for layer in body.layers:
        optional = {n for n in ("q_norm", "k_norm") if hasattr(layer.self_attn, n)}
        if not (
            _named(layer, _LAYER)
            and _named(layer.self_attn, _PROJECTIONS | optional)
            and _named(layer.mlp, _MLP)
        ):
            return "its layers are not Llama's"
    if not hasattr(body.norm, "variance_epsilon"):
        return f"its norms are {type(body.norm).__name__}"
    return _foreign([body, model.lm_head])


def _named(module: Any, names: set[str]) -> bool:
    return {name for name, _ in module.named_children()} == names


def _in_the_models_dtype(module: torch.nn.Module) -> Iterable[torch.nn.Parameter]:
    """A module's own parameters, but for the integers and scales of int8."""
    if isinstance(module, Int8Linear):
        return () if module.bias is None else (module.bias,)
    return module.parameters(recurse=False)


def _foreign(roots: Iterable[torch.nn.Module]) -> str | None:
    """What a plain reading of the weights would miss: hooks, quantised or scattered weights."""
    modules = [module for root in roots for module in root.modules()]
    for module in modules:
        name = type(module).__name__
        if module._forward_hooks or module._forward_pre_hooks or hasattr(module, "_hf_hook"):
            return f"hooks are registered on its {name}"
        if name.endswith(("Linear", "Conv1D")) and type(module) not in (
            torch.nn.Linear,
            Int8Linear,
        ):
            return f"its projections are {name}"
    wrapped = {
        type(weight).__name__ for module in modules for weight in module.parameters(recurse=False)
    }
    if wrapped - {"Parameter"}:  # torchao replaces weights and keeps the modules
        return f"its weights are {', '.join(sorted(wrapped - {'Parameter'}))}"
    weights = [weight for module in modules for weight in _in_the_models_dtype(module)]
    if len({(weight.dtype, weight.device) for weight in weights}) != 1:
        return "its weights have several dtypes or devices"
    return None
