"""Published heads computed naively from their tensors: whole texts, no cache, one position after another.

Written from the papers and formats, beside the loaders and not with them. A text is a list of token ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

Tensors = Mapping[str, Tensor]


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def rotated(x: Tensor, position: int, theta: float = 10000.0) -> Tensor:
    """`x [heads, d]` at a position."""
    half = x.shape[-1] // 2
    angle = position * theta ** (-torch.arange(half).float() / half)
    first, second = x[..., :half], x[..., half:]
    return torch.cat(
        [first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], -1
    )


class NaiveLayer:
    """One attention layer under a prefix of names; keys and values are lists over positions."""

    def __init__(self, config: Mapping[str, Any], tensors: Tensors, prefix: str) -> None:
        self.config, self.tensors, self.prefix = config, tensors, prefix
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def weight(self, name: str) -> Tensor:
        return self.tensors[f"{self.prefix}{name}.weight"]

    def _heads(self, x: Tensor, name: str, norm: str, position: int) -> Tensor:
        heads = (self.weight(f"self_attn.{name}") @ x).view(-1, self.config["head_dim"])
        if f"{self.prefix}self_attn.{norm}.weight" in self.tensors:
            heads = rms(heads, self.weight(f"self_attn.{norm}"), self.config["rms_norm_eps"])
        return rotated(heads, position)

    def remember(self, x: Tensor, position: int) -> None:
        """Keys and values of one input `[I]`."""
        self.keys.append(self._heads(x, "k_proj", "k_norm", position))
        value = (self.weight("self_attn.v_proj") @ x).view(-1, self.config["head_dim"])
        self.values.append(value)

    def read(self, x: Tensor, residual: Tensor, position: int) -> Tensor:
        """The state `[H]` of an input that reads all that is remembered."""
        size = self.config["head_dim"]
        queries = self._heads(x, "q_proj", "q_norm", position)
        shared = len(queries) // self.config["num_key_value_heads"]
        out = []
        for head, query in enumerate(queries):
            keys = torch.stack([k[head // shared] for k in self.keys])
            values = torch.stack([v[head // shared] for v in self.values])
            out.append((keys @ query / size**0.5).softmax(0) @ values)
        states = residual + self.weight("self_attn.o_proj") @ torch.cat(out)
        inner = rms(states, self.weight("post_attention_layernorm"), self.config["rms_norm_eps"])
        gate, up = self.weight("mlp.gate_proj") @ inner, self.weight("mlp.up_proj") @ inner
        return states + self.weight("mlp.down_proj") @ (silu(gate) * up)


def eagle3_drafts(
    config: Mapping[str, Any],
    tensors: Tensors,
    table: Tensor,
    text: Sequence[int],
    taps: Tensor,
    count: int,
) -> list[int]:
    """The `count` tokens that an EAGLE-3 head drafts after `text`; `taps [len(text) - 1, n, D]` are the
    target's states of all tokens but the last."""
    layers = config.get("transformer_layer_config", config)
    eps, prefix = layers["rms_norm_eps"], "midlayer."
    if "midlayer.hidden_norm.weight" not in tensors:
        prefix = "layers.0."
    first = NaiveLayer(layers, tensors, prefix)
    others = [
        NaiveLayer(layers, tensors, f"layers.{i}.") for i in range(1, layers["num_hidden_layers"])
    ]
    table = tensors.get("embed_tokens.weight", table)

    def project(states: Tensor) -> Tensor:
        parts = list(states)
        if config.get("fc_norm"):
            parts = [rms(p, tensors[f"fc_norm.{i}.weight"], eps) for i, p in enumerate(parts)]
        joined = torch.cat(parts)
        if config.get("norm_before_fc"):
            joined = rms(joined, tensors["input_norm.weight"], eps)
        return tensors["fc.weight"] @ joined

    def step(feature: Tensor, token: int, position: int) -> Tensor:
        left = rms(table[token], first.weight("input_layernorm"), eps)
        right = rms(feature, first.weight("hidden_norm"), eps)
        residual = right if config.get("norm_before_residual") else feature
        x = torch.cat([left, right])
        first.remember(x, position)
        states = first.read(x, residual, position)
        for layer in others:
            x = rms(states, layer.weight("input_layernorm"), eps)
            layer.remember(x, position)
            states = layer.read(x, states, position)
        return states

    states = torch.zeros(())
    for position, token in enumerate(text[1:]):
        states = step(project(taps[position]), token, position)
    drafts: list[int] = []
    for _ in range(count):
        normed = rms(states, tensors["norm.weight"], eps)
        row = int((tensors["lm_head.weight"] @ normed).argmax())
        drafts.append(row + int(tensors["d2t"][row]))
        feature = normed if config.get("norm_output") else states
        states = step(feature, drafts[-1], len(text) - 2 + len(drafts))
    return drafts


def mtp_drafts(
    config: Mapping[str, Any],
    tensors: Tensors,
    prefix: str,
    table: Tensor,
    head: Tensor,
    text: Sequence[int],
    taps: Tensor,
    count: int,
) -> list[int]:
    """The same of one MTP layer; `taps [len(text) - 1, D]` are the states behind the target's final norm."""
    eps, layer = config["rms_norm_eps"], NaiveLayer(config, tensors, prefix)

    def step(feature: Tensor, token: int, position: int) -> Tensor:
        joined = [rms(table[token], layer.weight("enorm"), eps)]
        joined.append(rms(feature, layer.weight("hnorm"), eps))
        residual = layer.weight("eh_proj") @ torch.cat(joined)
        x = rms(residual, layer.weight("input_layernorm"), eps)
        layer.remember(x, position)
        return rms(layer.read(x, residual, position), layer.weight("shared_head.norm"), eps)

    states = torch.zeros(())
    for position, token in enumerate(text[1:]):
        states = step(taps[position], token, position)
    drafts: list[int] = []
    for _ in range(count):
        drafts.append(int((head @ states).argmax()))
        states = step(states, drafts[-1], len(text) - 2 + len(drafts))
    return drafts
