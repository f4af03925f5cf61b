"""Batches whose text is continued by the draft itself, with the target's distributions as labels.

After on-policy distillation (arXiv 2306.13649, 2310.08461): an answer is cut at a random place, the draft
writes up to `LENGTH` tokens there, and the target says what it would have written at each. Knows pairs and
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .labels.label_batches import LabelBatch, collate
from .labels.label_rows import LabelRow
from .labels.sparse_distribution import CutHead, SparseDistribution
from .pairs.draft_pair import DraftPair

LENGTH = 5
"""Tokens that the draft writes: the drafts of a round."""


@torch.no_grad()
def drafted_batch(
    pair: DraftPair,
    draft: Any,
    rows: Sequence[LabelRow],
    seed: int,
    step: int,
    head: CutHead | None = None,
) -> LabelBatch:
    """The rows, each cut at a random place of its answer and continued by the draft: its choice in greedy
    rows, drawn in others. Labels are the target's, for the drafted positions and the one before."""
    rng = np.random.default_rng((seed, step, 1))
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    ends = [max(row.begin, len(row.tokens) - LENGTH) for row in rows]
    cuts = [int(rng.integers(row.begin, end + 1)) for row, end in zip(rows, ends, strict=True)]
    batch = collate(rows).to(pair.device.torch)
    device = batch.tokens.device
    cut = torch.tensor(cuts, device=device)
    number = torch.arange(len(rows), device=device)
    width = max(cuts) + LENGTH
    tokens = torch.nn.functional.pad(batch.tokens, (0, max(0, width - batch.tokens.shape[1])))
    greedy = torch.tensor([row.greedy for row in rows], device=device)
    for ahead in range(LENGTH):
        asked = replace(batch, tokens=tokens, row=number, place=cut + ahead - 1)
        chosen = _next(pair.logits(draft, asked, head), greedy, generator)
        tokens[number, cut + ahead] = chosen if head is None else head.ids[chosen]
    places = cut[:, None] - 1 + torch.arange(LENGTH, device=device)
    asked = LabelBatch(
        tokens,
        number.repeat_interleave(LENGTH),
        places.flatten(),
        batch.wanted,
        greedy.repeat_interleave(LENGTH),
        batch.states,
    )
    begins = torch.tensor([row.begin for row in rows], device=device)
    return replace(asked, wanted=SparseDistribution.of(pair.target_logits(asked, begins)))


def _next(logits: Tensor, greedy: Tensor, generator: torch.Generator) -> Tensor:
    """The next tokens [B] by logits [B, V]."""
    drawn = torch.multinomial(logits.float().softmax(-1).cpu(), 1, generator=generator)[:, 0]
    return torch.where(greedy, logits.argmax(-1), drawn.to(logits.device))
