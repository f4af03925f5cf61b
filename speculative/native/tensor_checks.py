"""Tensors as the kernels read them.

A kernel gets an address. It checks the values that it reads there, but cannot see of what type they are or
how many there are, so this is asked before the address is taken. Knows nothing of what the tensors mean.
"""

from __future__ import annotations

import torch
from torch import Tensor


def checked(name: str, tensor: Tensor, dtype: torch.dtype, *shape: int) -> Tensor:
    """The tensor, contiguous: itself, or a copy. Raises ValueError for another dtype, device or shape. Takes
    less than a microsecond, of the hundreds of a forward."""
    if tensor.dtype is not dtype or tensor.shape != shape or not tensor.is_cpu:
        raise ValueError(
            f"the kernels read {name} as {_named(dtype)} {list(shape)} on the CPU, not as "
            f"{_named(tensor.dtype)} {list(tensor.shape)} on {tensor.device}"
        )
    return tensor.contiguous()


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
