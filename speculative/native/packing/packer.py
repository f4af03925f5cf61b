"""Weights of a lean decoder in the layouts of the kernels.

Knows the records of `models.lean.weights`. A `Packer` owns what it makes: addresses in the records of
`structures` are valid as long as it lives.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.lean import weights as lean
from .. import structures as c
from ..library import Library
from ..structures import Stored
from ..tensor_checks import checked

PANEL = 16


def weights_stored(packer: Packer, head: lean.Linear) -> Stored:
    """How a model with this head stores its matrices: in int8 they all are, or none is."""
    return packer.stored if head.scale is None else Stored.INT8


class Packer:
    """Packs matrices and keeps tensors alive. `stored` is the form of the matrices, but for those that the
    model has in int8; vectors and embeddings stay float32, rounded to bfloat16 where `stored` is that, so
    that they are those of a rounded model."""

    def __init__(self, library: Library, stored: Stored) -> None:
        self.library, self.stored = library, stored
        self._kept: list[Tensor] = []

    def plain(self, tensor: Tensor) -> int:
        """The address of a contiguous float32 form of a tensor; of the tensor itself where it is one, and
        need not be rounded."""
        exact = tensor.detach().float()
        if self.stored is Stored.BFLOAT16:
            rounded = exact.to(torch.bfloat16).float()
            exact = exact if torch.equal(rounded, exact) else rounded
        return self.keep(exact.contiguous())

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

    def integers(self, weight: Tensor, scale: Tensor) -> int:
        """Packs `weight [out, in]` of int8 with `scale [out]`."""
        outputs, inputs = weight.shape
        source = checked("a matrix", weight, torch.int8, outputs, inputs)
        scales = checked("its scales", scale.float(), torch.float32, outputs)
        packed = torch.empty(
            self.library.packed_bytes(outputs, inputs, Stored.INT8), dtype=torch.uint8
        )
        self.library.pack_int8(
            source.data_ptr(), scales.data_ptr(), outputs, inputs, packed.data_ptr()
        )
        return self.keep(packed)

    def linear(self, linear: lean.Linear) -> c.Linear:
        if linear.scale is not None:
            return c.Linear(self.integers(linear.weight, linear.scale), self.bias(linear.bias))
        return c.Linear(self.matrix(linear.weight), self.bias(linear.bias))
