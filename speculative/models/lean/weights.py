"""The weights of a decoder as plain tensors, read from an unmodified transformers model.

Projections that read the same input are one matrix. Nothing here computes: the lean decoders do, and
native kernels pack these records.

Letters: D width, H heads, K heads of keys and values, d size of a head, F inner width, L layers, P positions,
V vocabulary. A matrix is `[out, in]`, as `torch.nn.functional.linear` takes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .projections import Linear, Norm, fused, linear_of, norm_of

__all__ = ["CausalLayer", "CausalWeights", "Linear", "Norm", "WhisperLayer", "WhisperWeights"]


@dataclass(frozen=True, eq=False)
class WhisperLayer:
    """One layer of Whisper's decoder. Both query projections contain attention's scale, `d ** -0.5`."""

    self_norm: Norm
    qkv: Linear  # [3 D, D]; the keys' bias is zero
    out: Linear  # [D, D]
    cross_norm: Norm
    cross_q: Linear  # [D, D]
    cross_out: Linear  # [D, D]
    ffn_norm: Norm
    up: Linear  # [F, D]
    down: Linear  # [D, F]


@dataclass(frozen=True, eq=False)
class WhisperWeights:
    """A Whisper decoder. `cross_kv` gives the cross-attention keys and values of all layers in one product:
    its rows are the keys of layer 0, its values, the keys of layer 1, ..."""

    embedding: Tensor  # [V, D]
    positions: Tensor  # [P, D]
    layers: tuple[WhisperLayer, ...]
    norm: Norm
    head: Linear  # [V, D]; the embedding itself where they are tied
    cross_kv: Linear  # [L 2 D, D]
    heads: int
    activation: str  # transformers' name of it
    eps: float  # of every layer norm

    @property
    def width(self) -> int:
        return self.embedding.shape[1]

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @classmethod
    def of(cls, model: Any) -> WhisperWeights:
        """The weights of a `WhisperForConditionalGeneration` or `WhisperForCausalLM`. The model's modules
        share them; only queries are copies, as their scale is part of them."""
        decoder = model.model.decoder
        cross = [p for x in decoder.layers for p in (x.encoder_attn.k_proj, x.encoder_attn.v_proj)]
        return cls(
            embedding=decoder.embed_tokens.weight.detach(),
            positions=decoder.embed_positions.weight.detach(),
            layers=tuple(_whisper_layer(layer) for layer in decoder.layers),
            norm=norm_of(decoder.layer_norm),
            head=linear_of(model.proj_out),
            cross_kv=fused(cross),
            heads=model.config.decoder_attention_heads,
            activation=model.config.activation_function,
            eps=decoder.layer_norm.eps,
        )


@dataclass(frozen=True, eq=False)
class CausalLayer:
    """One layer of a Llama-like decoder."""

    input_norm: Norm
    qkv: Linear  # [(H + 2 K) d, D]
    q_norm: Norm | None  # [d], of every head, before the rotation
    k_norm: Norm | None
    qk_norm: Tensor | None  # [H + K, d], both for all heads
    out: Linear  # [D, H d]
    post_norm: Norm
    gate_up: Linear  # [2 F, D]
    down: Linear  # [D, F]
    window: int | None  # a query reads this many positions, itself included; None: all
    rotary: bool  # False: this layer knows no positions


@dataclass(frozen=True, eq=False)
class CausalWeights:
    """A Llama-like decoder: RMS norms, rotary positions, a gated feed-forward.

    The angle of position p is `p * inv_freq`, for both halves of a head; cosine and sine are multiplied by
    `rotary_scale`. Scores are multiplied by `scale`.
    """

    embedding: Tensor  # [V, D]
    layers: tuple[CausalLayer, ...]
    norm: Norm
    head: Linear  # [V, D]
    inv_freq: Tensor  # [d / 2] float32
    rotary_scale: float
    heads: int
    kv_heads: int
    head_size: int
    scale: float
    activation: str  # transformers' name of it
    eps: float

    def angles(self, positions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine `[positions, d]` of every position. The sines of the first half of a head are
        negative: x is rotated to `x * cos + swapped(x) * sin`, with the halves of x swapped."""
        places = torch.arange(positions, device=self.inv_freq.device).float()
        half = places[:, None] * self.inv_freq
        cos, sin = half.cos() * self.rotary_scale, half.sin() * self.rotary_scale
        return torch.cat([cos, cos], 1).to(dtype), torch.cat([-sin, sin], 1).to(dtype)

    @classmethod
    def of(cls, model: Any) -> CausalWeights:
        """The weights of a causal LM that `coverage.causal_gap` finds no fault with. The model's modules
        share them, and compute as before."""
        body, config = model.base_model, model.config
        first = body.layers[0].self_attn
        return cls(
            embedding=body.embed_tokens.weight.detach(),
            layers=tuple(_causal_layer(layer, config, i) for i, layer in enumerate(body.layers)),
            norm=norm_of(body.norm),
            head=linear_of(model.lm_head),
            inv_freq=body.rotary_emb.inv_freq.float(),
            rotary_scale=float(body.rotary_emb.attention_scaling),
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_size=first.head_dim,
            scale=float(first.scaling),
            activation=config.hidden_act,
            eps=body.norm.variance_epsilon,
        )


def _whisper_layer(layer: Any) -> WhisperLayer:
    attention, cross = layer.self_attn, layer.encoder_attn
    scale = attention.scaling
    return WhisperLayer(
        self_norm=norm_of(layer.self_attn_layer_norm),
        qkv=fused([attention.q_proj, attention.k_proj, attention.v_proj], (scale, 1, 1)),
        out=linear_of(attention.out_proj),
        cross_norm=norm_of(layer.encoder_attn_layer_norm),
        cross_q=fused([cross.q_proj], (cross.scaling,)),
        cross_out=linear_of(cross.out_proj),
        ffn_norm=norm_of(layer.final_layer_norm),
        up=linear_of(layer.fc1),
        down=linear_of(layer.fc2),
    )


def _causal_layer(layer: Any, config: Any, index: int) -> CausalLayer:
    attention, mlp = layer.self_attn, layer.mlp
    q_norm, k_norm = (
        norm_of(module) if (module := getattr(attention, name, None)) is not None else None
        for name in ("q_norm", "k_norm")
    )
    kinds = getattr(config, "layer_types", None)
    slides = kinds[index] == "sliding_attention" if kinds else True
    window = getattr(config, "sliding_window", None) if slides else None
    return CausalLayer(
        input_norm=norm_of(layer.input_layernorm),
        qkv=fused([attention.q_proj, attention.k_proj, attention.v_proj]),
        q_norm=q_norm,
        k_norm=k_norm,
        qk_norm=_of_all_heads(q_norm, k_norm, config),
        out=linear_of(attention.o_proj),
        post_norm=norm_of(layer.post_attention_layernorm),
        gate_up=fused([mlp.gate_proj, mlp.up_proj]),
        down=linear_of(mlp.down_proj),
        window=window,
        rotary=bool(getattr(attention, "use_rope", True)),
    )


def _of_all_heads(q_norm: Norm | None, k_norm: Norm | None, config: Any) -> Tensor | None:
    """The weights of both norms, one row for each head of queries and then of keys."""
    if q_norm is None or k_norm is None:
        return None
    queries = q_norm.weight.expand(config.num_attention_heads, -1)
    return torch.cat([queries, k_norm.weight.expand(config.num_key_value_heads, -1)])
