"""Trust: how often the tokens of each source were kept, per row, as tensors.

Knows counts; nothing of drafters. Shapes: S sources, the rest as in `drafts`.
"""

from __future__ import annotations

import torch
from torch import Tensor

DECAY = 0.9
"""Weight of a row's earlier rounds in each new one: about ten rounds are remembered."""

SHARED_DECAY = 0.99
"""The same for all rows together."""

SHARED_WORTH = 4.0
"""Judged tokens of a row that the experience of all rows is worth."""

PRIOR_KEPT, PRIOR_TRIED = 2.0, 4.0
"""Assumed at first: half of the tokens are kept."""


class Trust:
    """The chance that a token of each source is kept, given that those before it were `[S, B]`."""

    def __init__(self, sources: int, batch: int, device: torch.device) -> None:
        self._kept = torch.zeros(sources, batch, device=device)
        self._tried = torch.zeros(sources, batch, device=device)
        self._shared = torch.tensor([PRIOR_KEPT, PRIOR_TRIED], device=device).repeat(sources, 1)

    def reset(self, rows: Tensor) -> None:
        """Forgets what was learnt on these rows alone."""
        self._kept[:, rows] = 0
        self._tried[:, rows] = 0

    def chances(self, batch: int) -> Tensor:
        """`[S, B]` of the first `batch` rows, above 0 and below 1."""
        shared = (self._shared[:, :1] + 0.5) / (self._shared[:, 1:] + 1)
        kept = self._kept[:, :batch] + SHARED_WORTH * shared
        return kept / (self._tried[:, :batch] + SHARED_WORTH)

    def learn(self, source: int, kept: Tensor, tried: Tensor) -> None:
        """Counts of one round `[B]`: tokens of the source that were judged, and kept."""
        batch, some = len(kept), tried > 0
        for total, new in ((self._kept[source], kept), (self._tried[source], tried)):
            total[:batch] = torch.where(some, DECAY * total[:batch] + new, total[:batch])
        sums = torch.stack([kept.sum(), tried.sum()]).to(self._shared.dtype)
        shared = self._shared[source]
        shared.copy_(torch.where(some.any(), SHARED_DECAY * shared + sums, shared))
