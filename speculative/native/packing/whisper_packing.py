"""Weights of Whisper's decoder in the layouts of the kernels.

Knows `WhisperWeights`; what it makes is owned by the `Packer` that it is given.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from ...models.lean.weights import WhisperWeights
from .. import structures as c
from .packer import PANEL, Packer, weights_stored


def whisper_layers(packer: Packer, weights: WhisperWeights) -> list[c.WhisperLayer]:
    """The records of all layers, without their caches."""
    width, heads = weights.width, weights.heads
    projections = weights.cross_kv.weight.view(len(weights.layers), 2, width, width)
    biases = weights.cross_kv.bias
    if biases is None:
        biases = torch.zeros(len(weights.layers) * 2 * width)
    biases = biases.view(len(weights.layers), 2, width)
    return [
        c.WhisperLayer(
            self_norm=packer.norm(layer.self_norm),
            qkv=packer.linear(layer.qkv),
            self_out=packer.linear(layer.out),
            cross_norm=packer.norm(layer.cross_norm),
            cross_query=packer.linear(layer.cross_q),
            cross_out=packer.linear(layer.cross_out),
            ffn_norm=packer.norm(layer.ffn_norm),
            up=packer.linear(layer.up),
            down=packer.linear(layer.down),
            cross_key=packer.plain(projections[i, 0]),
            cross_key_bias=packer.plain(biases[i, 0]),
            cross_value=c.Linear(
                packer.matrices(projections[i, 1].reshape(heads, width // heads, width)),
                packer.bias(
                    pad(biases[i, 1].view(heads, -1), (0, -(width // heads) % PANEL)).flatten()
                ),
            ),
        )
        for i, layer in enumerate(weights.layers)
    ]


def whisper_record(packer: Packer, weights: WhisperWeights) -> c.Whisper:
    """The model's record, without layers, caches and what an adapter chooses for those; a head with fewer
    rows than the embedding gives fewer logits."""
    return c.Whisper(
        width=weights.width,
        heads=weights.heads,
        layers=len(weights.layers),
        ffn=weights.layers[0].up.weight.shape[0],
        vocab=weights.embedding.shape[0],
        outputs=weights.head.weight.shape[0],
        positions=weights.positions.shape[0],
        weight_storage=weights_stored(packer, weights.head),
        activation=c.ACTIVATIONS[weights.activation],
        eps=weights.eps,
        embedding=packer.plain(weights.embedding),
        position=packer.plain(weights.positions),
        norm=packer.norm(weights.norm),
        head=packer.linear(weights.head),
    )
