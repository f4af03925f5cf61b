"""N-gram drafts: copies what followed the last few tokens when they occurred before.

Searches the row's own tokens and, in front of them, a hint: earlier text of the same recording, a
previous hypothesis, hot words. Needs no model; its distribution is one-hot. Static shapes: matches are
found by comparing whole rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..protocols import Model, Needs
from ..requests import Request
from ..rows import Rows
from ..types import Distribution, Draft, Scores, Verdict

_EMPTY = -1


class NgramDrafter:
    """Proposes the continuation of the longest, then latest, earlier match of `longest` to 1 tokens.

    `hint_slots` bounds the hint; a longer one keeps its last tokens. With `early` a greedy round is as wide
    as its longest match, and plain decoding where less than half of the rows have one: this reads the
    device, which costs nothing on a CPU but cannot be captured on a GPU. Rounds with sampled rows keep
    their width: draws depend on it.
    """

    def __init__(
        self,
        *,
        longest: int = 3,
        shortest: int = 1,
        hint_slots: int = 256,
        early: bool = False,
    ) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"need 1 <= shortest <= longest, got {shortest} and {longest}")
        self.longest, self.shortest, self.hint_slots = longest, shortest, hint_slots
        self.early = early
        self.hints: Tensor | None = None  # [B, hint_slots], right-aligned, -1 in front

    @property
    def needs(self) -> Needs:
        return Needs(ends_early=self.early)

    def distribution(self, *, sampling: bool) -> Distribution:
        return Distribution.ONE_HOT

    def bind(self, target: Model) -> None:
        """Does nothing: lookup needs no model."""

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        shape = (batch, self.hint_slots)
        self.hints = torch.full(shape, _EMPTY, dtype=torch.int64, device=device)

    def forwards(self, gamma: int) -> int:
        return 0

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        assert self.hints is not None
        hints = torch.full((len(requests), self.hint_slots), _EMPTY, dtype=torch.int64)
        for i, request in enumerate(requests):
            hint = request.hint[-self.hint_slots :]
            if hint:
                hints[i, self.hint_slots - len(hint) :] = torch.tensor(hint)
        self.hints[rows] = hints.to(self.hints.device)

    def catch_up(self, rows: Rows, start: Tensor, count: int) -> None:
        """Does nothing: proposals search the text itself."""

    def propose(self, rows: Rows, gamma: int) -> Draft:
        assert self.hints is not None
        hint = self.hints[: rows.batch]
        gap = torch.full_like(hint[:, :1], _EMPTY)  # no match may straddle hint and text
        known = torch.arange(rows.scratch, device=hint.device) < rows.lengths[:, None]
        text = torch.cat([hint, gap, rows.tokens[:, :-1].where(known, _EMPTY)], dim=1)  # [B, L]
        end = self.hint_slots + 1 + rows.lengths  # [B], one past the pending token
        column = torch.arange(text.shape[1], device=text.device)

        best = torch.zeros_like(end)  # index of the first copied token; 0: no match
        run = torch.ones_like(text, dtype=torch.bool)  # run[b, j]: the last n tokens end at j too
        for n in range(1, self.longest + 1):
            suffix = text.gather(1, (end - n).clamp_min(0)[:, None])  # [B, 1], n-th last token
            shifted = torch.cat([torch.full_like(text[:, : n - 1], _EMPTY), text], dim=1)
            run = run & (shifted[:, : text.shape[1]] == suffix) & (suffix != _EMPTY)
            if n < self.shortest:
                continue
            earlier = run & (column < (end - 1)[:, None])  # not the suffix itself
            last = torch.where(earlier, column + 1, 0).amax(1)
            best = torch.where(last > 0, last, best)

        take = best[:, None] + torch.arange(gamma, device=text.device)  # [B, G]
        tokens = text.gather(1, take.clamp_max(text.shape[1] - 1))
        usable = ((tokens != _EMPTY) & (take < end[:, None])).long().cumprod(1)
        valid = torch.where((best > 0) & rows.active, usable.sum(1), 0)
        if self.early and not rows.mode.sampling:
            # All rows are scored at this width: with few matches it costs more than it can gain.
            matching = 2 * (valid > 0).sum() >= rows.active.sum()
            tokens = tokens[:, : int(torch.where(matching, valid.amax(), 0))]
            valid = valid.clamp_max(tokens.shape[1])
        return Draft(tokens=tokens.clamp_min(0), valid=valid)

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Does nothing, for the same reason."""
