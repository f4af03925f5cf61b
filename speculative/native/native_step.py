"""The arguments of a native forward, from tensors.

Knows addresses; nothing of models.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .structures import Step
from .workspace import Workspace


def step_of(
    tokens: Tensor,
    start: Tensor,
    reach: int,
    *,
    workspace: Workspace,
    size: int,
    logits: Tensor | None = None,
    hidden: Tensor | None = None,
    rows: Tensor | None = None,
    node: Tensor | None = None,
    tree: tuple[Tensor, Tensor] | None = None,
) -> Step:
    """The step over `tokens [B, N]` from slot `start [B]` on, with `size` bytes of the workspace and torch's
    number of threads. `tree` is depths, int64, and ancestry, bool. All tensors are contiguous, and the caller
    keeps them until the call ends."""
    given = {
        "tokens": tokens,
        "start": start,
        "logits": logits,
        "hidden": hidden,
        "rows": rows,
        "node": node,
        "depths": None if tree is None else tree[0],
        "ancestry": None if tree is None else tree[1],
    }
    return Step(
        batch=tokens.shape[0],
        nodes=tokens.shape[1],
        reach=reach,
        workspace=workspace.at_least(size),
        workspace_bytes=size,
        threads=torch.get_num_threads(),
        **{name: tensor.data_ptr() for name, tensor in given.items() if tensor is not None},
    )
