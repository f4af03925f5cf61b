"""Tiny random text LLMs, unmodified transformers classes, of every family that the core names."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCAB, EOS, POSITIONS, WINDOW = 60, 1, 40, 7

SHARED = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.4,  # random weights of the default size would repeat one token
    "bos_token_id": 2,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.25,
    "logits_scaling": 4.0,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen2 with a window": {
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 1,
    },
    "qwen3": {},
    "gemma": {},
    "gemma2": {"sliding_window": WINDOW, "layer_types": MIXED},  # and soft-capped logits
    "gemma3_text": {"sliding_window": WINDOW, "layer_types": MIXED},
    "granite": GRANITE,
    "mistral": {"sliding_window": None},
    "mistral with a window": {"sliding_window": WINDOW},
    "gpt2": {
        "n_positions": POSITIONS,
        "n_embd": 16,
        "n_layer": 3,
        "n_head": 4,
        "hidden_size": 16,
        "head_dim": None,
        "num_key_value_heads": None,
    },
}


@functools.cache
@torch.inference_mode(False)  # whoever asks first
def causal_lm(
    family: str, *, layers: int = 3, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Any:
    """A model of the family; `layers` fewer than three make a draft of the same vocabulary."""
    values = SHARED | FAMILIES[family] | {"num_hidden_layers": layers}
    if family == "gpt2":
        values["n_layer"] = layers
    if "layer_types" in values:
        values["layer_types"] = values["layer_types"][:layers]
    values = {
        name: value for name, value in values.items() if value is not None or "window" in name
    }
    torch.manual_seed(seed)
    config = CONFIG_MAPPING[family.split()[0]](**values)
    model = AutoModelForCausalLM.from_config(config).eval().to(dtype)
    model.generation_config.pad_token_id = 0
    return model


@torch.inference_mode()
def forward(model: Any, tokens: Tensor) -> Tensor:
    """Logits `[L, V]` of a whole prefix, without a cache."""
    return model(input_ids=tokens[None], use_cache=False).logits[0]
