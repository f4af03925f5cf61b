"""Batches of labelled rows of similar length, as a pure function of seed and step.

So a run that is resumed at a step goes on as it would have. Some text tokens of the input are replaced
(the labels stay right): in use a draft reads its own wrong tokens. Knows rows and tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from .label_rows import GENERAL, LabelRow
from .sparse_distribution import CutHead, SparseDistribution

MISLED = 0.04
"""Share of the answer's text tokens that are replaced in the input."""

NEIGHBOURS = 0.05
"""Share of all rows, next in length, that a batch is drawn from: less padding, still other company."""


@dataclass(frozen=True, eq=False)
class LabelBatch:
    """`tokens [B, L]`, right-padded; the N predicted positions are `row [N]`, `place [N]`: the place of the
    token *before* each prediction. `wanted` and `greedy [N]` belong to them. `states [B, S, D]` are what the
    draft attends to."""

    tokens: Tensor
    row: Tensor
    place: Tensor
    wanted: SparseDistribution
    greedy: Tensor
    states: Tensor | None

    def under(self, head: CutHead) -> LabelBatch:
        """The positions whose choice a cut head has, with distributions over it: at the others no draft of
        that head can be accepted."""
        there = head.has(self.wanted.choice)
        wanted = SparseDistribution(self.wanted.ids[there], self.wanted.logs[there]).under(head)
        return replace(
            self,
            row=self.row[there],
            place=self.place[there],
            wanted=wanted,
            greedy=self.greedy[there],
        )

    def to(self, device: torch.device) -> LabelBatch:
        """The same on a device."""
        return LabelBatch(
            self.tokens.to(device),
            self.row.to(device),
            self.place.to(device),
            SparseDistribution(self.wanted.ids.to(device), self.wanted.logs.to(device)),
            self.greedy.to(device),
            None if self.states is None else self.states.to(device),
        )


def collate(rows: Sequence[LabelRow]) -> LabelBatch:
    """Rows to one batch."""
    longest = max(len(row.tokens) for row in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
    for number, row in enumerate(rows):
        tokens[number, : len(row.tokens)] = torch.tensor(row.tokens)
    states = [row.states()[1] for row in rows if row.states is not None]
    return LabelBatch(
        tokens,
        torch.cat([torch.full((row.answered,), i) for i, row in enumerate(rows)]),
        torch.cat([torch.arange(row.begin - 1, len(row.tokens) - 1) for row in rows]),
        SparseDistribution.joined([row.wanted for row in rows]),
        torch.cat([torch.full((row.answered,), row.greedy) for row in rows]),
        torch.stack(states) if states else None,
    )


class BatchSource:
    """Draws batches of about `budget` tokens, padding included, at most `most` rows.

    A share `mixed` of them are of the general rows, where there are any; `text_ids` are the tokens that may
    be replaced, and replace others.
    """

    def __init__(
        self,
        rows: Sequence[LabelRow],
        *,
        seed: int,
        budget: int,
        most: int,
        text_ids: int,
        mixed: float = 0.15,
        misled: float = MISLED,
    ) -> None:
        own = sorted((r for r in rows if r.kind != GENERAL), key=lambda r: len(r.tokens))
        general = sorted((r for r in rows if r.kind == GENERAL), key=lambda r: len(r.tokens))
        self.own, self.general = own or general, general
        self.seed, self.budget, self.most = seed, budget, most
        self.text_ids, self.mixed, self.misled = text_ids, mixed, misled

    def draw_rows(self, step: int) -> list[LabelRow]:
        """The rows of a step."""
        rng = np.random.default_rng((self.seed, step))
        pool = self.general if self.general and rng.random() < self.mixed else self.own
        width = max(min(len(pool), 4), round(NEIGHBOURS * len(pool)))
        begin = int(rng.integers(max(1, len(pool) - width + 1)))
        order = rng.permutation(min(width, len(pool) - begin))
        chosen: list[LabelRow] = []
        longest = 0
        for index in order:
            row = pool[begin + int(index)]
            longest = max(longest, len(row.tokens))
            if chosen and longest * (len(chosen) + 1) > self.budget:
                break
            chosen.append(row)
            if len(chosen) == self.most:
                break
        return chosen

    def draw(self, step: int) -> LabelBatch:
        """The batch of a step."""
        batch = collate(self.draw_rows(step))
        return replace(batch, tokens=self._mislead(batch, step))

    def _mislead(self, batch: LabelBatch, step: int) -> Tensor:
        """Tokens [B, L] with a few of the answers' text tokens replaced by random ones."""
        rng = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        answer = torch.zeros_like(batch.tokens, dtype=torch.bool)
        answer[batch.row, batch.place] = True
        first = torch.full((len(batch.tokens),), batch.tokens.shape[1])
        first = first.scatter_reduce(0, batch.row, batch.place, "amin")
        answer[torch.arange(len(first)), first] = (
            False  # the prompt's last token is none of the answer
        )
        wrong = torch.rand(batch.tokens.shape, generator=rng) < self.misled
        other = torch.randint(self.text_ids, batch.tokens.shape, generator=rng)
        return torch.where(answer & wrong & (batch.tokens < self.text_ids), other, batch.tokens)
