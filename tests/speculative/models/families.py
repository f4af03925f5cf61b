"""Tiny random models of any type that transformers knows, for asking what the core makes of them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCAB, POSITIONS, WINDOW, CHUNK = 60, 28, 7, 6

# Configurations say the same in many words; each takes those that it has.
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 16),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size"), 24),
    **dict.fromkeys(("intermediate_size_mlp", "dim_feedforward", "decoder_ffn_dim"), 24),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_global_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "global_head_dim", "moe_intermediate_size"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), POSITIONS),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "rotary_dim"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_shared_experts"), 1),
    **dict.fromkeys(("first_k_dense_replace", "encoder_layers"), 1),
    **dict.fromkeys(("decoder_layers", "decoder_attention_heads"), 2),
    "shared_expert_intermediate_size": 8,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 6,
    "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": VOCAB,
    "state_size": 4,
    "attention_chunk_size": CHUNK,
    "sliding_window": WINDOW,
}


def tiny(kind: str, **changes: Any) -> Any:
    """A model of type `kind`; `changes` to its configuration, None takes a size back.

    Its weights are drawn wide: with the usual 0.02 attention would hardly change a logit.
    """
    factory = CONFIG_MAPPING[kind]
    known = factory().to_dict()
    values = {
        name: value
        for name, value in SIZES.items()
        if (name in factory.attribute_map or name in known)
        and not (name in ("sliding_window", "q_lora_rank") and known.get(name) is None)
    }
    values |= changes
    config = factory(**{name: value for name, value in values.items() if value is not None})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1 and weight.std() > 0:
                weight.mul_(0.3 / weight.std())
    return model
