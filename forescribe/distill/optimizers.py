"""Muon for the matrices in layers and AdamW for the rest, in about half the steps of AdamW alone.

Knows parameters; nothing of losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from forescribe.speculative.device import bfloat16_units


class Float32Muon(torch.optim.Muon):
    """torch's Muon with its products in float32, and the same state. torch computes them in bfloat16, which
    takes 54 to 67 times as long on a CPU that only emulates it (256 x 256 and 256 x 1024, AVX2)."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Make one step; `closure` is not supported."""
        assert closure is None
        for group in self.param_groups:
            for weight in (w for w in group["params"] if w.grad is not None):
                state, lr = self.state[weight], float(group["lr"])
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(weight.grad)
                momentum = state["momentum_buffer"]
                momentum.lerp_(weight.grad, 1 - group["momentum"])
                nesterov = group["nesterov"]
                mean = weight.grad.lerp(momentum, group["momentum"]) if nesterov else momentum
                weight.mul_(1 - lr * group["weight_decay"])
                scale = 0.2 * math.sqrt(max(weight.shape))  # `match_rms_adamw`
                weight.add_(_orthogonal(mean, group), alpha=-lr * scale)
        return None


def _orthogonal(matrix: Tensor, group: dict[str, Any]) -> Tensor:
    """The nearest semi-orthogonal matrix `[A, B]`, nearly, by Newton and Schulz's iteration."""
    a, b, c = group["ns_coefficients"]
    tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


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
        emulated = self.parameters[0].device.type == "cpu" and not bfloat16_units()
        muon = Float32Muon if emulated else torch.optim.Muon
        self.both: tuple[torch.optim.Optimizer, ...] = (
            muon(matrices, lr=peak, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
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
