"""What a captured function does, as a list: every operator with the tensors that it touches.

A `Recorder` is a dispatch mode that raises on what a capture forbids. Two runs of a function have equal
traces exactly if a replay of the first would compute the second: the same operators, on the same external
addresses, on shapes and strides that are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SYNCS = frozenset(
    f"aten.{name}"
    for name in (
        "_local_scalar_dense item is_nonzero equal nonzero masked_select unique_dim _unique2 "
        "unique_consecutive repeat_interleave.Tensor lift_fresh _pin_memory"
    ).split()
)
"""Operators that wait for the device, whose shape depends on data, or that copy from the host's memory."""


class Forbidden(AssertionError):
    """Something that a capture does not allow."""


def tensors(values: Any) -> Iterator[Tensor]:
    """All tensors in nested arguments."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        for value in values.values():
            yield from tensors(value)
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from tensors(value)


def check_operator(name: str, args: Any) -> None:
    """Raises `Forbidden` for an operator that a capture does not allow."""
    if name in SYNCS:
        raise Forbidden(f"{name} inside a capture")
    if name.startswith(("aten.index", "aten._index_put")) and len(args) > 1:
        for index in tensors(args[1]):
            if index.dtype == torch.bool:
                raise Forbidden("boolean-mask indexing inside a capture")


class Recorder(TorchDispatchMode):
    """Records a function; `owner` marks what it allocates, which belongs to its graph alone."""

    def __init__(self, owner: object) -> None:
        super().__init__()
        self.owner = owner
        self.trace: list[tuple[Any, ...]] = []
        self.external: set[int] = set()  # addresses
        self._own: dict[int, int] = {}  # address of a storage made inside -> its number
        self._alive: list[Tensor] = []  # so that no address is used twice

    def _name(self, tensor: Tensor) -> tuple[Any, ...]:
        storage = tensor.untyped_storage().data_ptr()
        number = self._own.get(storage)
        shape = tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype
        if number is not None:
            return ("own", number, tensor.storage_offset(), *shape)
        if tensor.numel() == 0 or tensor.dim() == 0 and storage == 0:
            return ("empty", *shape)
        owner = getattr(tensor, "graph_owner", None)
        if owner is not None and owner is not self.owner:
            raise Forbidden("a graph reads what another graph allocated")
        self.external.add(storage)
        return ("external", tensor.data_ptr(), *shape)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.overloadpacket)
        check_operator(name, args)
        before = [self._name(t) for t in tensors((args, kwargs or {}))]
        known = {t.untyped_storage().data_ptr() for t in tensors((args, kwargs or {}))}
        result = func(*args, **(kwargs or {}))
        for made in tensors(result):
            storage = made.untyped_storage().data_ptr()
            if storage and storage not in known and storage not in self._own:
                self._own[storage] = len(self._own)
            if storage in self._own:
                self._alive.append(made)
                made.graph_owner = self.owner  # type: ignore[attr-defined]
        scalars = tuple(a for a in args if isinstance(a, (int, float, bool)))
        self.trace.append(
            (name, scalars, tuple(before), tuple(self._name(t) for t in tensors(result)))
        )
        return result


def compare(recorded: Recorder, now: Recorder) -> None:
    """Raises `Forbidden` with the first difference of two traces."""
    for n, (first, second) in enumerate(zip(recorded.trace, now.trace, strict=False)):
        if first != second:
            raise Forbidden(f"operator {n} differs from the capture:\n  {first}\n  {second}")
    if len(recorded.trace) != len(now.trace):
        raise Forbidden(f"{len(now.trace)} operators instead of {len(recorded.trace)}")
