"""Target and draft: Llama's architecture with unmodified transformers classes.

The target is deep and narrow: at this size the time of a step is that of calling its layers, so a draft of
one layer is cheap compared with sixteen; width would not help. Most of the training uses four layers, in a
third of the time; then the target grows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div
from transformers import LlamaConfig, LlamaForCausalLM

from training.text.packing import Pack
from training.text.tokenizer import SIGNS, SIZE

POSITIONS = 512
FEW, LAYERS = 4, 16
"""Layers of the target at the start and at the end of its training."""


def _configuration(layers: int, width: int, inner: int, heads: int) -> LlamaConfig:
    begin, end = SIGNS.index("<|begin|>"), SIGNS.index("<|end|>")
    return LlamaConfig(
        vocab_size=SIZE,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=begin,
        eos_token_id=end,
        pad_token_id=end,
    )


def target(layers: int) -> LlamaForCausalLM:
    return LlamaForCausalLM(_configuration(layers, width=128, inner=352, heads=4))


def draft() -> LlamaForCausalLM:
    return LlamaForCausalLM(_configuration(layers=1, width=128, inner=768, heads=4))


def grown(model: LlamaForCausalLM, layers: int) -> LlamaForCausalLM:
    """Add layers without changing the function of the model.

    A layer whose two output matrices are zero is the identity; their gradients are not zero, so it learns
    from the first step. `layers` is a multiple of the model's.
    """
    old = model.model.layers
    every = layers // len(old)
    made = target(layers)
    made.model.embed_tokens.load_state_dict(model.model.embed_tokens.state_dict())
    made.model.norm.load_state_dict(model.model.norm.state_dict())
    for place, layer in enumerate(made.model.layers):
        if place % every == 0:
            layer.load_state_dict(old[place // every].state_dict())
        else:
            nn.init.zeros_(layer.self_attn.o_proj.weight)
            nn.init.zeros_(layer.mlp.down_proj.weight)
    return made


def logits(model: LlamaForCausalLM, pack: Pack) -> Tensor:
    """The logits `[K, V]` of the positions with a next token, in float32."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states = model.model(
            input_ids=pack.tokens,
            position_ids=pack.positions,
            attention_mask=pack.mask,
            use_cache=False,
        ).last_hidden_state
        return model.lm_head(states[pack.known]).float()


def distillation(wanted: Tensor, guess: Tensor) -> Tensor:
    """Divergence and half of the cross-entropy per token, from the logits [N, V] of both models."""
    divergence = kl_div(
        guess.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean"
    )
    return divergence + 0.5 * cross_entropy(guess, wanted.argmax(-1))
