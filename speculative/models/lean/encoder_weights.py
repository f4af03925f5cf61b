"""The weights of Whisper's encoder as plain tensors, read from an unmodified transformers model.

Letters: D width, F inner width, M mel bins, S positions of a window. A matrix is `[out, in]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .projections import Linear, Norm, linear_of, norm_of


@dataclass(frozen=True, eq=False)
class EncoderLayer:
    """One layer. The query projection contains attention's scale, `d ** -0.5`."""

    attention_norm: Norm
    query: Linear  # [D, D], as the next three
    key: Linear
    value: Linear
    out: Linear
    ffn_norm: Norm
    up: Linear  # [F, D]
    down: Linear  # [D, F]


@dataclass(frozen=True, eq=False)
class EncoderWeights:
    """A Whisper encoder. Convolutions read three frames at a time."""

    conv1: Linear  # [D, M, 3]
    conv2: Linear  # [D, D, 3]
    positions: Tensor  # [S, D]
    layers: tuple[EncoderLayer, ...]
    norm: Norm
    heads: int
    activation: str  # transformers' name of the layers' activation
    eps: float  # of every layer norm

    @property
    def width(self) -> int:
        return self.positions.shape[1]

    @property
    def mels(self) -> int:
        return self.conv1.weight.shape[1]

    @classmethod
    def of(cls, encoder: Any) -> EncoderWeights:
        """The weights of a `WhisperEncoder`, which shares them; only queries are copies."""
        return cls(
            conv1=linear_of(encoder.conv1),
            conv2=linear_of(encoder.conv2),
            positions=encoder.embed_positions.weight.detach(),
            layers=tuple(_layer(layer) for layer in encoder.layers),
            norm=norm_of(encoder.layer_norm),
            heads=encoder.config.encoder_attention_heads,
            activation=encoder.config.activation_function,
            eps=encoder.layer_norm.eps,
        )


def _layer(layer: Any) -> EncoderLayer:
    attention = layer.self_attn
    query, scale = linear_of(attention.q_proj), attention.scaling
    return EncoderLayer(
        attention_norm=norm_of(layer.self_attn_layer_norm),
        query=Linear(query.weight * scale, None if query.bias is None else query.bias * scale),
        key=linear_of(attention.k_proj),
        value=linear_of(attention.v_proj),
        out=linear_of(attention.out_proj),
        ffn_norm=norm_of(layer.final_layer_norm),
        up=linear_of(layer.fc1),
        down=linear_of(layer.fc2),
    )
