"""Counters on the device: what rounds drafted, accepted and emitted.

A round adds to them without a host sync; the host reads them when it polls. Knows tensors only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Counters:
    """Running sums over all rows and rounds.

    `drafted` and `accepted` are `[G_max]`, per depth of the draft: entry i counts the rows whose
    draft i + 1 was submitted, and kept.
    """

    drafted: Tensor
    accepted: Tensor
    judged: Tensor  # [] drafts that were kept, or the first of their row and round that was not
    row_rounds: Tensor  # [] sum over rounds of the active rows
    emitted: Tensor  # [] committed tokens

    @staticmethod
    def zeros(max_gamma: int, device: torch.device) -> Counters:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        return Counters(zeros(max_gamma), zeros(max_gamma), zeros(), zeros(), zeros())

    def add(self, active: Tensor, drafted: Tensor, accepted: Tensor, emitted: Tensor) -> None:
        """Adds one round: per row whether it was active, and its three counts (all `[B]`)."""
        depth = torch.arange(self.drafted.shape[0], device=self.drafted.device)
        self.drafted.add_((depth < drafted[:, None]).sum(0))
        self.accepted.add_((depth < accepted[:, None]).sum(0))
        self.judged.add_((accepted + (accepted < drafted)).sum())
        self.row_rounds.add_(active.sum())
        self.emitted.add_(emitted.sum())
