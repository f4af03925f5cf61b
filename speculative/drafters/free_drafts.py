"""Free drafts: proposals of sources that cost nothing, merged by row.

Knows drafters and chances; nothing of models or prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..protocols import Drafter
from ..rows import Rows


@dataclass(frozen=True)
class FreeDrafts:
    """Proposals of the free sources, merged by row."""

    tokens: Tensor  # [B, G]
    valid: Tensor  # [B]
    source: Tensor  # [B] number of the source
    chance: Tensor  # [B] that a token is kept


def proposed(
    sources: Sequence[Drafter],
    rows: Rows,
    gamma: int,
    chances: Tensor,
    first: int,
    *,
    learnt: bool = True,
) -> FreeDrafts:
    """Drafts of the likeliest source that has any, by row; of the first one where nothing `learnt` is to
    count. `chances` `[S, B]` are those of the sources, which are numbered from `first`."""
    found: FreeDrafts | None = None
    for number, (drafter, chance) in enumerate(zip(sources, chances, strict=True), start=first):
        draft = drafter.propose(rows, gamma)
        if found is None:
            source = torch.full_like(draft.valid, number)
            found = FreeDrafts(draft.tokens, draft.valid, source, chance)
            continue
        better = (chance > found.chance) & learnt
        takes = (draft.valid > 0) & ((found.valid == 0) | better)
        found = FreeDrafts(
            torch.where(takes[:, None], draft.tokens, found.tokens),
            torch.where(takes, draft.valid, found.valid),
            torch.where(takes, number, found.source),
            torch.where(takes, chance, found.chance),
        )
    assert found is not None
    return found


def after(rows: Rows, drafts: Tensor, count: Tensor) -> Rows:
    """The rows as they are if the first `count` `[B]` of their drafts `[B, W]` are kept."""
    column = torch.arange(drafts.shape[1], device=drafts.device)
    slot = torch.where(column < count[:, None], rows.lengths[:, None] + column, rows.scratch)
    tokens = rows.tokens.scatter(1, slot.clamp_max(rows.scratch), drafts)
    return replace(rows, tokens=tokens, lengths=(rows.lengths + count).clamp_max(rows.scratch))
