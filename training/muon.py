"""Muon (Jordan et al. 2024) with all matrices of one shape orthogonalised in one batched product.

torch.optim.Muon does the same matrix by matrix, which on two cores costs several times as much.
Everything that is not a hidden matrix belongs to AdamW.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.team import Team

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
EAGER = 1.7  # how much faster the matrices named `eager` move


def orthogonalise(g: Tensor, steps: int = 4) -> Tensor:
    """[K, M, N] with M <= N -> each matrix with its singular values moved near 1."""
    a, b, c = COEFFICIENTS
    x = g.bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.float()


class Muon:
    """Nesterov momentum, then orthogonalisation; `rate` is the spectral norm of one update."""

    def __init__(
        self,
        matrices: list[nn.Parameter],
        eager: set[int] | None = None,
        momentum: float = 0.95,
        decay: float = 0.02,
    ) -> None:
        self.eager = eager or set()
        self.momentum = momentum
        self.decay = decay
        groups: dict[tuple[int, int], list[nn.Parameter]] = {}
        for matrix in matrices:
            groups.setdefault((min(matrix.shape), max(matrix.shape)), []).append(matrix)
        self.groups = list(groups.values())
        self.buffers = [[torch.zeros_like(p) for p in group] for group in self.groups]

    @torch.no_grad()
    def step(self, rate: float, team: Team) -> None:
        """Each member of the team updates its share of the groups, then all exchange them."""
        for number in range(team.rank, len(self.groups), team.size):
            self._update(self.groups[number], self.buffers[number], rate)
        for number, group in enumerate(self.groups):
            team.share([p for p in group if p.grad is not None], number % team.size)

    def gather(self, team: Team) -> None:
        """Brings every member's momentum to all of them, for a checkpoint."""
        for number, buffers in enumerate(self.buffers):
            team.share(buffers, number % team.size)

    def _update(self, group: list[nn.Parameter], buffers: list[Tensor], rate: float) -> None:
        live = [(p, m) for p, m in zip(group, buffers, strict=True) if p.grad is not None]
        if not live:
            return
        stack = []
        for p, m in live:
            assert p.grad is not None
            m.lerp_(p.grad, 1 - self.momentum)
            update = p.grad.lerp(m, self.momentum)
            stack.append(update if p.shape[0] <= p.shape[1] else update.mT)
        for (p, _), update in zip(live, orthogonalise(torch.stack(stack)), strict=True):
            tall = p.shape[0] > p.shape[1]
            # 0.2 sqrt(max) gives an update the size of AdamW's (Liu et al. 2025).
            scale = 0.2 * max(p.shape) ** 0.5
            if id(p) in self.eager:
                scale *= EAGER
            p.mul_(1 - rate * self.decay)
            p.add_(update.mT if tall else update, alpha=-rate * scale)

    def state_dict(self) -> dict[str, list[list[Tensor]]]:
        return {"buffers": self.buffers}

    def load_state_dict(self, state: dict[str, list[list[Tensor]]]) -> None:
        self.buffers = state["buffers"]
