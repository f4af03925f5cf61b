"""Zeros that take no memory on a CPU until they are written.

`torch.zeros` writes every page. Pages of a new anonymous mapping are zero without being written, and the
system provides each of them at its first write. Knows memory; nothing of caches.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """As `torch.zeros`. On CPUs the tensor owns a mapping of its own, aligned to pages: for large ones that
    are written in part. Raises MemoryError."""
    count = prod(shape)
    if device.type != "cpu" or count == 0:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.frombuffer(_mapping(count * dtype.itemsize), dtype=dtype).view(*shape)


def _mapping(size: int) -> mmap.mmap:
    # Private: shared memory would be a file's, with a limit of its own.
    try:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"not enough memory for a cache of {size} bytes") from error
