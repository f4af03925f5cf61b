"""Weights of a Llama-like decoder in the layouts of the kernels.

Knows `CausalWeights`; what it makes is owned by the `Packer` that it is given.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...models.lean.weights import CausalLayer, CausalWeights, Linear, Norm
from .. import structures as c
from .packer import PANEL, Packer, weights_stored


def causal_layers(packer: Packer, weights: CausalWeights) -> list[c.CausalLayer]:
    """The records of all layers, without their caches."""
    return [_layer(packer, layer) for layer in weights.layers]


def causal_record(packer: Packer, weights: CausalWeights, vocab: int) -> c.Causal:
    """The model's record for logits of `vocab` tokens, without layers, caches and angles."""
    own = weights.head.weight.shape[0]
    outputs = min(vocab, own)
    head = weights.head.rows(slice(outputs))
    return c.Causal(
        width=weights.embedding.shape[1],
        heads=weights.heads,
        key_heads=weights.kv_heads,
        head=weights.head_size,
        layers=len(weights.layers),
        ffn=weights.layers[0].down.weight.shape[1],
        vocab=weights.embedding.shape[0],
        outputs=outputs,
        columns=vocab,
        weight_storage=weights_stored(packer, head),
        cache_storage=packer.stored,
        activation=c.ACTIVATIONS[weights.activation],
        eps=weights.eps,
        scale=weights.scale,
        embedding=packer.stored_plain(weights.embedding),
        norm=packer.plain(weights.norm.weight),
        projection=packer.linear(head),
    )


def angle_tables(weights: CausalWeights, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[positions, d / 2]` in float32."""
    angles = torch.arange(positions).float()[:, None] * weights.inv_freq
    scale = weights.rotary_scale
    return (angles.cos() * scale).contiguous(), (angles.sin() * scale).contiguous()


def alternating(linear: Linear) -> Linear:
    """`gate_up [2 F, D]` with 16 outputs of the gate, 16 of the other half, and so on, zero-padded."""
    weight = _alternate(linear.weight)
    rest = (
        None if x is None else _alternate(x[:, None])[:, 0] for x in (linear.bias, linear.scale)
    )
    return Linear(weight, *rest)


def _alternate(rows: Tensor) -> Tensor:
    halves = rows.view(2, -1, rows.shape[1])
    padded = pad(halves, (0, 0, 0, -halves.shape[1] % PANEL))
    return padded.view(2, -1, PANEL, rows.shape[1]).transpose(0, 1).reshape(-1, rows.shape[1])


def _layer(packer: Packer, layer: CausalLayer) -> c.CausalLayer:
    def norm(given: Norm | None) -> int | None:
        return None if given is None else packer.plain(given.weight)

    return c.CausalLayer(
        input_norm=norm(layer.input_norm),
        qkv=packer.linear(layer.qkv),
        query_norm=norm(layer.q_norm),
        key_norm=norm(layer.k_norm),
        out=packer.linear(layer.out),
        post_norm=norm(layer.post_norm),
        gate_up=packer.linear(alternating(layer.gate_up)),
        down=packer.linear(layer.down),
        window=layer.window or 0,
        rotary=layer.rotary,
    )
