"""Memory for the intermediate results of native calls; grows to the largest call so far."""

from __future__ import annotations

import torch
from torch import Tensor

ALIGNMENT = 128


class Workspace:
    """One block of bytes, aligned to cache lines. Its content is undefined between calls."""

    def __init__(self) -> None:
        self._block: Tensor | None = None

    def at_least(self, size: int) -> int:
        """The address of `size` bytes, valid until the next call."""
        if self._block is None or len(self._block) < size + ALIGNMENT:
            self._block = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
        address = self._block.data_ptr()
        return address + -address % ALIGNMENT

    def release(self) -> None:
        self._block = None
