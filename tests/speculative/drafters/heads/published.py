"""New heads for a target as their publishers store them: configurations, and tensors by name.

Tests write random ones and read them back. Knows names and sizes only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

Tensors = dict[str, Tensor]
STANDARD = 0.02  # deviation of new matrices


def layers_of(target: Any, kind: str, layers: int, inner: int) -> dict[str, Any]:
    """The configuration of `layers` layers of a kind ("llama", "qwen3") beside a target's configuration."""
    heads = target.num_attention_heads
    return {
        "model_type": kind,
        "hidden_size": target.hidden_size,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": target.num_key_value_heads,
        "head_dim": getattr(target, "head_dim", None) or target.hidden_size // heads,
        "hidden_act": "silu",
        "rms_norm_eps": target.rms_norm_eps,
        "vocab_size": target.vocab_size,
        "max_position_embeddings": target.max_position_embeddings,
        "rope_theta": 10000.0,
    }


def new_layer(
    config: Mapping[str, Any], prefix: str, *, inputs: int, query_norms: bool = False
) -> Tensors:
    """The tensors of one layer without its input norms."""
    width, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    rows, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    shapes = {
        "self_attn.q_proj": (rows, inputs),
        "self_attn.k_proj": (kv, inputs),
        "self_attn.v_proj": (kv, inputs),
        "self_attn.o_proj": (width, rows),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    made = {f"{prefix}{n}.weight": STANDARD * torch.randn(shape) for n, shape in shapes.items()}
    made[f"{prefix}post_attention_layernorm.weight"] = torch.ones(width)
    if query_norms:
        made[f"{prefix}self_attn.q_norm.weight"] = torch.ones(size)
        made[f"{prefix}self_attn.k_norm.weight"] = torch.ones(size)
    return made


def eagle3(
    target: Any,
    ids: Sequence[int],
    *,
    inner: int,
    taps: Sequence[int] | None = None,
    layers: int = 1,
    speculators: bool = False,
    flags: Mapping[str, bool] | None = None,
) -> tuple[dict[str, Any], Tensors]:
    """An EAGLE-3 head that proposes the tokens `ids`; as SafeAILab stores it, or as `speculators` does."""
    flags, width = dict(flags or {}), target.hidden_size
    config = layers_of(target, "llama", layers, inner)
    first = "layers.0." if speculators or layers > 1 else "midlayer."
    tensors = new_layer(config, first, inputs=2 * width)
    tensors[f"{first}input_layernorm.weight"] = torch.ones(width)
    tensors[f"{first}hidden_norm.weight"] = torch.ones(width)
    for index in range(1, layers):
        tensors |= new_layer(config, f"layers.{index}.", inputs=width)
        tensors[f"layers.{index}.input_layernorm.weight"] = torch.ones(width)
    count = len(taps) if taps is not None else 3
    tensors["fc.weight"] = STANDARD * torch.randn(width, count * width)
    tensors["norm.weight"] = torch.ones(width)
    tensors["lm_head.weight"] = STANDARD * torch.randn(len(ids), width)
    kept = torch.tensor(sorted(ids))
    tensors["d2t"] = kept - torch.arange(len(ids))
    tensors["t2d"] = torch.isin(torch.arange(target.vocab_size), kept)
    if flags.get("norm_before_fc"):
        tensors["input_norm.weight"] = torch.ones(count * width)
    if flags.get("fc_norm"):
        tensors |= {f"fc_norm.{i}.weight": torch.ones(width) for i in range(count)}
    settings: dict[str, Any] = {"draft_vocab_size": len(ids), **flags}
    if taps is not None:
        settings["eagle_aux_hidden_state_layer_ids"] = list(taps)
    if not speculators:
        return {**config, "architectures": ["LlamaForCausalLMEagle3"], **settings}, tensors
    method = {"proposal_type": "greedy", "speculative_tokens": 5}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {
                "name_or_path": "target",
                "architectures": list(target.architectures or ()),
            },
        },
        "transformer_layer_config": config,
        **settings,
    }, tensors


def mtp(target: Any, *, inner: int) -> tuple[dict[str, Any], Tensors]:
    """One MTP layer of a Llama-like target: what its configuration gains, and tensors beside its own."""
    config = layers_of(target, target.model_type, 1, inner)
    prefix, width = f"model.layers.{target.num_hidden_layers}.", target.hidden_size
    tensors = new_layer(config, prefix, inputs=width, query_norms=target.model_type == "qwen3")
    for name in ("input_layernorm", "enorm", "hnorm", "shared_head.norm"):
        tensors[f"{prefix}{name}.weight"] = torch.ones(width)
    # It begins as the target's own state, beside which it learns to read the next token.
    tensors[f"{prefix}eh_proj.weight"] = torch.cat(
        [STANDARD * torch.randn(width, width), torch.eye(width)], 1
    )
    return {"num_nextn_predict_layers": 1}, tensors


def save(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """Writes a head's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    plain = {name: value.detach().contiguous() for name, value in tensors.items()}
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
