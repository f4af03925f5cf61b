"""The weights of Whisper's encoder in the layouts of the kernels.

Knows the record of `models.lean.encoder_weights`. Addresses are valid as long as the packer lives.
"""

from __future__ import annotations

from ctypes import addressof

from torch.nn.functional import pad

from ...models.lean.encoder_weights import EncoderWeights
from ...models.lean.projections import Linear
from .. import structures as c
from .packer import PANEL, Packer


def encoder_record(packer: Packer, weights: EncoderWeights) -> tuple[c.Encoder, object]:
    """The encoder's record, and the array of its layers, which must live as long."""
    layers = [
        c.EncoderLayer(
            attention_norm=packer.norm(layer.attention_norm),
            query=packer.linear(layer.query),
            key=packer.linear(layer.key),
            value=packer.linear(layer.value),
            out=packer.linear(layer.out),
            ffn_norm=packer.norm(layer.ffn_norm),
            up=packer.linear(layer.up),
            down=packer.linear(layer.down),
        )
        for layer in weights.layers
    ]
    array = (c.EncoderLayer * len(layers))(*layers)
    record = c.Encoder(
        width=weights.width,
        heads=weights.heads,
        layers=len(layers),
        ffn=weights.layers[0].up.weight.shape[0],
        mels=weights.mels,
        sources=weights.positions.shape[0],
        weight_storage=packer.stored,
        activation=c.ACTIVATIONS[weights.activation],
        eps=weights.eps,
        conv1=packer.linear(_frames(weights.conv1, 1)),
        conv2=packer.linear(_frames(weights.conv2, PANEL)),
        position=packer.plain(weights.positions),
        norm=packer.norm(weights.norm),
        layer=addressof(array),
    )
    return record, array


def _frames(convolution: Linear, multiple: int) -> Linear:
    """A convolution `[D, M, 3]` as a matrix `[D, 3 M']` over three frames side by side, M' being M rounded
    up to a multiple."""
    weight = convolution.weight.permute(0, 2, 1)
    weight = pad(weight, (0, -weight.shape[2] % multiple))
    return Linear(weight.flatten(1), convolution.bias)
