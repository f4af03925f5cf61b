"""Distributions over a vocabulary by their most probable tokens.

64 tokens hold nearly all of a target's probability, in a hundredth of the space of all logits. Knows
tensors; nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LISTED = 64
"""Tokens that are kept of each distribution (R)."""

LEAST = -60.0
"""The log-probability of a token that a logits processor forbids: float16 can store it, and its share of
any loss is zero."""


@dataclass(frozen=True, eq=False)
class CutHead:
    """The tokens that a cut output head has: `ids [L]`, ascending, and by token its place among them
    (`places [V]`), -1 for one that the head lacks."""

    ids: Tensor
    places: Tensor

    @classmethod
    def of(cls, ids: Sequence[int], vocab_size: int, device: torch.device) -> CutHead:
        """From a list of tokens, in ascending order."""
        listed = torch.tensor(ids, device=device)
        places = torch.full((vocab_size,), -1, device=device)
        places[listed] = torch.arange(len(ids), device=device)
        return cls(listed, places)

    def has(self, tokens: Tensor) -> Tensor:
        """Whether the head has each of the tokens."""
        return self.places[tokens] >= 0


@dataclass(frozen=True, eq=False)
class SparseDistribution:
    """The R most probable tokens of N distributions, in order; the rest of each is one lump.

    `ids [N, R]` int64, `logs [N, R]` float32 log-probabilities.
    """

    ids: Tensor
    logs: Tensor

    @classmethod
    def of(cls, logits: Tensor, listed: int = LISTED) -> SparseDistribution:
        """From logits [N, V], processed ones included: forbidden tokens are -inf."""
        best = logits.float().log_softmax(-1).topk(min(listed, logits.shape[-1]), dim=-1)
        return cls(best.indices, best.values.clamp(min=LEAST))

    def under(self, head: CutHead) -> SparseDistribution:
        """With places in a cut head for ids: a token that it lacks has no probability, its share is part of
        the rest, and its id is 0."""
        places = head.places[self.ids]
        there = places >= 0
        return SparseDistribution(
            torch.where(there, places, 0), torch.where(there, self.logs, LEAST)
        )

    @property
    def choice(self) -> Tensor:
        """The most probable tokens [N]."""
        return self.ids[:, 0]

    @property
    def probabilities(self) -> Tensor:
        """Of the listed tokens [N, R]."""
        return self.logs.exp()

    @property
    def rest(self) -> Tensor:
        """The probability of all tokens that are not listed [N]."""
        return (1 - self.probabilities.sum(-1)).clamp(min=0)

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def joined(cls, parts: list[SparseDistribution]) -> SparseDistribution:
        """One after the other; all list the same number of tokens."""
        return cls(torch.cat([p.ids for p in parts]), torch.cat([p.logs for p in parts]))
