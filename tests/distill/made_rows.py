"""Labelled rows for tests, of random tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from forescribe.distill.labels import OWN, LabelRow, SparseDistribution


def made_row(
    number: int, *, begin: int = 2, answered: int = 5, greedy: bool = True, kind: str = OWN
) -> LabelRow:
    """A row of source `number`, whose tokens and distributions depend on it."""
    rng = torch.Generator().manual_seed(number)
    tokens = torch.randint(0, 30, (begin + answered,), generator=rng)
    wanted = SparseDistribution.of(torch.randn(answered, 32, generator=rng), listed=8)
    return LabelRow(f"recording {number}", kind, tuple(tokens.tolist()), begin, greedy, wanted)


def spoken(row: LabelRow, target: Tensor, draft: Tensor) -> LabelRow:
    """The row with encoder states."""
    from dataclasses import replace

    return replace(row, states=lambda: (target, draft))
