"""Weights of a lean decoder in the layouts of the kernels.

Knows the records of `models.lean.weights`. A `Packer` owns what it makes: addresses in the records of
`structures` are valid as long as it lives.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...models.lean import weights as lean
from .. import structures as c
from ..library import Library
from ..structures import Stored

PANEL = 16


class Packer:
    """Packs matrices and keeps tensors alive. `stored` is the form of the matrices; vectors and embeddings
    stay float32, rounded to bfloat16 where the matrices are, so that they are those of a rounded model."""

    def __init__(self, library: Library, stored: Stored) -> None:
        self.library, self.stored = library, stored
        self._kept: list[Tensor] = []

    def plain(self, tensor: Tensor) -> int:
        """The address of a contiguous float32 form of a tensor; of the tensor itself where it is one."""
        tensor = tensor.detach()
        if self.stored is Stored.BFLOAT16:
            tensor = tensor.to(torch.bfloat16)
        return self.keep(tensor.float().contiguous())

    def stored_plain(self, tensor: Tensor) -> int:
        """The address of a contiguous form of a tensor in the storage of the matrices."""
        dtype = torch.bfloat16 if self.stored is Stored.BFLOAT16 else torch.float32
        return self.keep(tensor.detach().to(dtype).contiguous())

    def keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()

    def norm(self, norm: lean.Norm) -> c.Norm:
        return c.Norm(
            self.plain(norm.weight), norm.bias if norm.bias is None else self.plain(norm.bias)
        )

    def bias(self, bias: Tensor | None) -> int | None:
        """A bias followed by zeros: the kernels read it in blocks of a panel."""
        if bias is None:
            return None
        padded = torch.zeros(len(bias) + 2 * PANEL)
        padded[: len(bias)] = bias
        return self.plain(padded)

    def matrix(self, weight: Tensor) -> int:
        """Packs `weight [out, in]`."""
        return self.matrices(weight[None])

    def matrices(self, weights: Tensor) -> int:
        """Packs `weights [n, out, in]` one after the other."""
        source = weights.detach().float().contiguous()
        count, outputs, inputs = source.shape
        size = self.library.packed_bytes(outputs, inputs, self.stored)
        packed = torch.empty(count * size, dtype=torch.uint8)
        for i in range(count):
            self.library.pack(
                source[i].data_ptr(), outputs, inputs, self.stored, packed.data_ptr() + i * size
            )
        return self.keep(packed)

    def linear(self, linear: lean.Linear) -> c.Linear:
        return c.Linear(self.matrix(linear.weight), self.bias(linear.bias))


def whisper_layers(packer: Packer, weights: lean.WhisperWeights) -> list[c.WhisperLayer]:
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


def whisper_record(
    packer: Packer, weights: lean.WhisperWeights, sources: int, cache: Stored, cross: Stored
) -> c.Whisper:
    """The model's record, without layers and caches; a head with fewer rows than the embedding gives fewer
    logits."""
    return c.Whisper(
        width=weights.width,
        heads=weights.heads,
        layers=len(weights.layers),
        ffn=weights.layers[0].up.weight.shape[0],
        vocab=weights.embedding.shape[0],
        outputs=weights.head.shape[0],
        positions=weights.positions.shape[0],
        sources=sources,
        weight_storage=packer.stored,
        cache_storage=cache,
        cross_storage=cross,
        activation=c.ACTIVATIONS[weights.activation],
        eps=weights.eps,
        embedding=packer.plain(weights.embedding),
        position=packer.plain(weights.positions),
        norm=packer.norm(weights.norm),
        head=c.Linear(packer.matrix(weights.head), None),
    )
