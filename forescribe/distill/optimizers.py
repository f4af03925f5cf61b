"""Muon for the matrices in layers and AdamW for the rest, in about half the steps of AdamW alone.

Knows parameters; nothing of losses.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Optimizers:
    """Both optimizers over the parameters of models that are not frozen, stepped as one."""

    def __init__(self, *models: nn.Module, peak: float) -> None:
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, weight in (named for m in models for named in m.named_parameters()):
            if weight.requires_grad:
                (matrices if weight.ndim == 2 and "embed" not in name else others).append(weight)
        self.peak = peak
        self.parameters = [*matrices, *others]
        self.both: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(matrices, lr=peak, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=peak, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        )

    def step(self, share: float) -> None:
        """Make one step at `share` of the peak rate and clear the gradients."""
        for optimizer in self.both:
            for group in optimizer.param_groups:
                group["lr"] = self.peak * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self.both]

    def load(self, states: list[dict[str, Any]]) -> None:
        for optimizer, state in zip(self.both, states, strict=True):
            optimizer.load_state_dict(state)


def rate(progress: float, step: int, *, fall_from: float, warm: int = 20) -> float:
    """The share of the peak rate: rises for `warm` steps, falls linearly to zero from `fall_from`."""
    return min(1.0, (step + 1) / warm, (1 - progress) / (1 - fall_from))
