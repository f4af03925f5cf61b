"""Weights of decoders and of Whisper's encoder in the layouts of the kernels, packed once for a model.

A `Packer` owns what it makes: addresses in the records of `library` are valid as long as it lives. Packing
takes as long as reading the weights several times, and the result as much memory as the weights. The adapters
of one model therefore share one (`PACKED`), which is freed with the model. Knows the records of
`models.weights`, and models by identity.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from ctypes import Structure, addressof
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..models.weights import (
    CausalLayer,
    CausalWeights,
    EncoderWeights,
    Linear,
    Norm,
    WhisperWeights,
)
from . import library
from .library import Library, Stored, checked

PANEL = 16
BLOCK = 256 * PANEL
"""Rows of a matrix that are float32 at a time while they are packed."""

EXACT = (Stored.EXACT_INT8, Stored.EXACT_BFLOAT16, Stored.EXACT_FLOAT16)
"""Forms of float32 matrices in fewer bytes, the cheapest first: most of a decoder's time is reading its
weights."""


@dataclass(frozen=True, eq=False)
class Packed:
    """The records of a model and of its layers, without caches, and what owns their weights. Adapters copy
    the records, as they have caches of their own."""

    packer: Packer
    record: library.Whisper | library.Causal
    layers: Sequence[Structure]
    form: Hashable  # what it depends on besides the weights
    state: object  # of the weights it was made of


PACKED: WeakKeyDictionary[Any, Packed] = WeakKeyDictionary()
"""The last form of each model."""


class Packer:
    """Packs matrices and keeps tensors alive. `stored` is the form of the matrices, but for those that the
    model has in int8; vectors stay float32, rounded to bfloat16 where `stored` is that, so that they are
    those of a rounded model. `exact` are the forms that are tried for a float32 matrix; a head that is also
    the embedding is packed once."""

    _matrices: dict[tuple[int, torch.Size], tuple[Tensor, library.Linear]]  # with their sources

    def __init__(self, library: Library, stored: Stored, exact: Sequence[Stored] = EXACT) -> None:
        self.library, self.stored = library, stored
        self.exact = exact if stored is Stored.FLOAT32 else ()
        self._kept: list[Tensor] = []
        self._matrices = {}

    def plain(self, tensor: Tensor) -> int:
        """The address of a contiguous float32 form of a tensor; of the tensor itself where it is one, and
        need not be rounded."""
        exact = tensor.detach().float()
        if self.stored is Stored.BFLOAT16:
            rounded = exact.to(torch.bfloat16).float()
            exact = exact if torch.equal(rounded, exact) else rounded
        return self.keep(exact.contiguous())

    def keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()

    def norm(self, norm: Norm) -> library.Norm:
        return library.Norm(
            self.plain(norm.weight), norm.bias if norm.bias is None else self.plain(norm.bias)
        )

    def alike(self, record: type[Structure], layer: Any) -> dict[str, Structure]:
        """The norms and products of a layer that the record has by the same names."""
        pack: dict[Any, Any] = {library.Norm: self.norm, library.Linear: self.linear}
        known = ((name, kind) for name, kind, *_ in record._fields_ if hasattr(layer, name))
        return {name: pack[kind](getattr(layer, name)) for name, kind in known if kind in pack}

    def bias(self, bias: Tensor | None) -> int | None:
        """A bias followed by zeros: the kernels read it in blocks of a panel."""
        if bias is None:
            return None
        padded = torch.zeros(len(bias) + 2 * PANEL)
        padded[: len(bias)] = bias
        return self.plain(padded)

    def matrix(self, weight: Tensor) -> library.Linear:
        """Packs `weight [out, in]`, in the first exact form that has its numbers."""
        key = weight.data_ptr(), weight.shape
        known = self._matrices.get(key)
        if known is not None:
            return known[1]
        for stored in (*self.exact, self.stored):
            packed = self._packed(weight.detach()[None], stored)
            if packed is not None:
                break
        assert packed is not None  # the last form takes all numbers
        made = library.Linear(self.keep(packed), None, stored)
        self._matrices[key] = weight, made  # so that no other matrix gets its address
        return made

    def close(self) -> None:
        """All is packed: lets go of the matrices that it was made of."""
        self._matrices.clear()

    def matrices(self, weights: Tensor) -> int:
        """Packs `weights [n, out, in]` one after the other."""
        packed = self._packed(weights.detach(), self.stored)
        assert packed is not None
        return self.keep(packed)

    def _packed(self, source: Tensor, stored: Stored) -> Tensor | None:
        """None where the numbers do not fit."""
        count, outputs, inputs = source.shape
        size = self.library.packed_bytes(outputs, inputs, stored)
        packed = torch.empty(count * size, dtype=torch.uint8)
        for i in range(count):
            for first in range(0, outputs, BLOCK):
                rows = source[i, first : first + BLOCK].float().contiguous()
                at = packed.data_ptr() + i * size + self.library.packed_bytes(first, inputs, stored)
                if not self.library.pack(rows.data_ptr(), len(rows), inputs, stored, at):
                    return None
        return packed

    def integers(self, weight: Tensor, scale: Tensor) -> int:
        """Packs `weight [out, in]` of int8 with `scale [out]`."""
        outputs, inputs = weight.shape
        source = checked("a matrix", weight, torch.int8, outputs, inputs)
        scales = checked("its scales", scale.float(), torch.float32, outputs)
        size = self.library.packed_bytes(outputs, inputs, Stored.INT8)
        packed = torch.empty(size, dtype=torch.uint8)
        self.library.pack_int8(
            source.data_ptr(), scales.data_ptr(), outputs, inputs, packed.data_ptr()
        )
        return self.keep(packed)

    def linear(self, linear: Linear) -> library.Linear:
        bias = self.bias(linear.bias)
        if linear.scale is not None:
            weight = self.integers(linear.weight, linear.scale)
            return library.Linear(weight, bias, Stored.INT8)
        packed = self.matrix(linear.weight)
        return library.Linear(packed.weight, bias, packed.storage)


def whisper_records(
    packer: Packer, weights: WhisperWeights
) -> tuple[library.Whisper, list[library.WhisperLayer]]:
    """The records of the model and of its layers, without caches and what an adapter chooses for those; a
    head with fewer rows than the embedding gives fewer logits."""
    record = library.Whisper(
        **_named(weights, "width heads eps"),
        layers=len(weights.layers),
        ffn=weights.layers[0].up.weight.shape[0],
        vocab=weights.embedding.shape[0],
        outputs=weights.head.weight.shape[0],
        positions=weights.positions.shape[0],
        weight_storage=packer.stored if weights.head.scale is None else Stored.INT8,  # all or none
        activation=library.ACTIVATIONS[weights.activation],
        embedding=packer.matrix(weights.embedding),
        position=packer.plain(weights.positions),
        norm=packer.norm(weights.norm),
        head=packer.linear(weights.head),
    )
    width, heads = weights.width, weights.heads
    projections = weights.cross_kv.weight.view(len(weights.layers), 2, width, width)
    biases = weights.cross_kv.bias
    if biases is None:
        biases = torch.zeros(len(weights.layers) * 2 * width)
    biases = biases.view(len(weights.layers), 2, width)
    layers = [
        library.WhisperLayer(
            **packer.alike(library.WhisperLayer, layer),
            self_out=packer.linear(layer.out),
            cross_query=packer.linear(layer.cross_q),
            cross_key=packer.plain(projections[i, 0].clone()),  # without the values beside it
            cross_key_bias=packer.plain(biases[i, 0]),
            cross_value=library.Linear(
                packer.matrices(projections[i, 1].reshape(heads, width // heads, width)),
                packer.bias(
                    pad(biases[i, 1].view(heads, -1), (0, -(width // heads) % PANEL)).flatten()
                ),
                packer.stored,
            ),
        )
        for i, layer in enumerate(weights.layers)
    ]
    return record, layers


def causal_records(
    packer: Packer, weights: CausalWeights, vocab: int
) -> tuple[library.Causal, list[library.CausalLayer]]:
    """The records of the model, for logits of `vocab` tokens, and of its layers, without caches and
    angles."""
    own = weights.head.weight.shape[0]
    outputs = min(vocab, own)
    head = weights.head.rows(slice(outputs))
    record = library.Causal(
        **_named(weights, "heads eps scale embedding_scale residual_scale logits_scale"),
        width=weights.embedding.shape[1],
        key_heads=weights.kv_heads,
        head=weights.head_size,
        layers=len(weights.layers),
        ffn=weights.layers[0].down.weight.shape[1],
        vocab=weights.embedding.shape[0],
        outputs=outputs,
        columns=vocab,
        weight_storage=packer.stored if head.scale is None else Stored.INT8,
        cache_storage=packer.stored,
        activation=library.ACTIVATIONS[weights.activation],
        embedding=packer.matrix(weights.embedding),
        norm=packer.plain(weights.norm.weight),
        projection=packer.linear(head),
    )
    return record, [_causal_layer(packer, layer) for layer in weights.layers]


def encoder_record(packer: Packer, weights: EncoderWeights) -> tuple[library.Encoder, object]:
    """The encoder's record, and the array of its layers, which must live as long."""
    layers = [
        library.EncoderLayer(**packer.alike(library.EncoderLayer, layer))
        for layer in weights.layers
    ]
    array = (library.EncoderLayer * len(layers))(*layers)
    record = library.Encoder(
        **_named(weights, "width heads mels eps"),
        layers=len(layers),
        ffn=weights.layers[0].up.weight.shape[0],
        sources=weights.positions.shape[0],
        weight_storage=packer.stored,
        activation=library.ACTIVATIONS[weights.activation],
        conv1=packer.linear(_frames(weights.conv1, 1)),
        conv2=packer.linear(_frames(weights.conv2, PANEL)),
        position=packer.plain(weights.positions),
        norm=packer.norm(weights.norm),
        layer=addressof(array),
    )
    return record, array


def _named(weights: Any, names: str) -> dict[str, Any]:
    """Numbers that a record has by the same names."""
    return {name: getattr(weights, name) for name in names.split()}


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


def _causal_layer(packer: Packer, layer: CausalLayer) -> library.CausalLayer:
    def norm(given: Norm | None) -> int | None:
        return None if given is None else packer.plain(given.weight)

    return library.CausalLayer(
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


def _frames(convolution: Linear, multiple: int) -> Linear:
    """A convolution `[D, M, 3]` as a matrix `[D, 3 M']` over three frames side by side, M' being M rounded
    up to a multiple."""
    weight = convolution.weight.permute(0, 2, 1)
    weight = pad(weight, (0, -weight.shape[2] % multiple))
    return Linear(weight.flatten(1), convolution.bias)
