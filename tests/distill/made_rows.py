"""Labelled rows for tests, of random tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from forescribe.distill.labels import LabelRow, SparseDistribution

STATES = torch.zeros(2, 3)


def made_row(
    number: int,
    *,
    begin: int = 2,
    answered: int = 5,
    target: Tensor = STATES,
    draft: Tensor | None = None,
) -> LabelRow:
    """A row of source `number`, whose tokens and distributions depend on it."""
    rng = torch.Generator().manual_seed(number)
    tokens = torch.randint(0, 30, (begin + answered,), generator=rng)
    wanted = SparseDistribution.of(torch.randn(answered, 32, generator=rng), listed=8)
    states = (target, target if draft is None else draft)
    return LabelRow(f"recording {number}", tuple(tokens.tolist()), begin, wanted, lambda: states)
