"""Writes a Hugging Face folder as a file of openai-whisper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

NAMES = (
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"),
    ("embed_positions.weight", "positional_embedding"),
    ("embed_tokens", "token_embedding"),
    (".layers.", ".blocks."),
    ("self_attn_layer_norm", "attn_ln"),
    ("encoder_attn_layer_norm", "cross_attn_ln"),
    ("final_layer_norm", "mlp_ln"),
    ("self_attn.", "attn."),
    ("encoder_attn.", "cross_attn."),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("out_proj", "out"),
    ("fc1", "mlp.0"),
    ("fc2", "mlp.2"),
)


def dims_of(folder: Path) -> dict[str, int]:
    config = json.loads((folder / "config.json").read_text())
    found = {"n_vocab": config["vocab_size"], "n_mels": config["num_mel_bins"]}
    for side, theirs, ctx in (("encoder", "audio", "source"), ("decoder", "text", "target")):
        found[f"n_{theirs}_ctx"] = config[f"max_{ctx}_positions"]
        found[f"n_{theirs}_state"] = config["d_model"]
        found[f"n_{theirs}_head"] = config[f"{side}_attention_heads"]
        found[f"n_{theirs}_layer"] = config[f"{side}_layers"]
    return found


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    """Weights by OpenAI's names."""
    found = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        theirs = name.removeprefix("model.")
        for ours, other in NAMES:
            theirs = theirs.replace(ours, other)
        found[theirs] = tensor
    return found


def write_pt(folder: Path, path: Path, **changes: Any) -> Path:
    state = {**state_of(folder), "decoder.mask": torch.zeros(2, 2)}
    torch.save({"dims": dims_of(folder), "model_state_dict": state, **changes}, path)
    return path
