"""Two single-threaded processes that train one model together.

On a shared machine this is faster than one process with two threads: threads synchronise at every operator,
processes once per step. Gradients are averaged.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Team:
    """Rank and size of the group, and its two operations."""

    def __init__(self, rank: int, size: int, meeting_point: Path) -> None:
        self.rank = rank
        self.size = size
        if size > 1:
            dist.init_process_group(
                "gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=size
            )

    def average(self, parameters: list[nn.Parameter]) -> None:
        """Replace every gradient by its mean over the processes."""
        grads = [p.grad for p in parameters if p.grad is not None]
        if self.size == 1:
            return
        flat = torch.cat([g.flatten() for g in grads]) / self.size
        dist.all_reduce(flat)
        _spread(flat, grads)

    def agree(self, value: float) -> float:
        """Return the value of the first process."""
        if self.size == 1:
            return value
        box = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(box, 0)
        return float(box[0])


def _spread(flat: Tensor, tensors: list[Tensor]) -> None:
    start = 0
    for tensor in tensors:
        tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()
