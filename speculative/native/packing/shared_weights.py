"""Packed weights, made once for a model and used by all of its adapters.

Packing takes as long as reading the weights several times, and the result as much memory as the weights. The
adapter that is compared with the model when it is loaded, the one that decodes then, and those of further
engines on the same model therefore share one. It is freed with the model.

Knows models by identity and their parameters by their bits; nothing of how they are packed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from ctypes import Structure
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .packer import Packer

Record = TypeVar("Record", bound=Structure)
Layer = TypeVar("Layer", bound=Structure)

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, eq=False)
class Packed(Generic[Record, Layer]):
    """The records of a model and of its layers, without caches, and what owns their weights. Adapters copy
    the records, as they have caches of their own."""

    packer: Packer
    record: Record
    layers: Sequence[Layer]

    def copy(self) -> Record:
        """A copy of the model's record, without layers."""
        return type(self.record).from_buffer_copy(self.record)


_packed: WeakKeyDictionary[Any, tuple[object, Packed[Any, Any]]] = WeakKeyDictionary()
"""The last form of each model, with what it was made of."""


def packed_once(
    model: Any,
    form: Hashable,
    parameters: Callable[[], Iterable[Tensor]],
    make: Callable[[], Packed[Record, Layer]],
) -> Packed[Record, Layer]:
    """What `make` returned for this form of the model before, if it was the last one and the parameters
    still have the same bits; else what it returns now. The check reads the weights once."""
    known = _packed.get(model)
    if known is not None and known[0] == (form, _sums(parameters())):
        return known[1]
    forget(model)  # before the new one is made: both at a time would be a third copy
    made = make()
    _packed[model] = (form, _sums(parameters())), made
    return made


def listed_key(listed: Tensor | None) -> Hashable:
    """The tokens of a cut head, as part of a form."""
    return None if listed is None else tuple(listed.tolist())


def forget(model: Any) -> None:
    """Frees what was packed for a model, once its adapters are gone: where another engine runs it."""
    _packed.pop(model, None)


def _sums(parameters: Iterable[Tensor]) -> object:
    """Shapes and sums of the bits of parameters. A change of one number changes its sum, and so do two
    rows or columns that change places."""
    return [(tuple(p.shape), _sum(p.detach())) for p in parameters]


def _sum(parameter: Tensor) -> int:
    """A hash of the sums of all rows and of all columns. Bits are added as integers of their own size, which
    wrap around: with wider sums torch takes sixteen times as long. Two numbers of 16 bits are read as one
    where they lie so."""
    bits = parameter.view(_BITS[parameter.itemsize])
    even = parameter.ndim > 0 and parameter.shape[-1] % 2 == 0
    if bits.dtype == torch.int16 and even and bits.is_contiguous():
        if bits.storage_offset() % 2 == 0:
            bits = bits.view(torch.int32)
    matrix = bits.flatten(1) if bits.ndim > 1 else bits.reshape(-1, 1)
    sums = [matrix.sum(axis, dtype=bits.dtype) for axis in (0, 1)]
    return hash(tuple(each.cpu().numpy().tobytes() for each in sums))
