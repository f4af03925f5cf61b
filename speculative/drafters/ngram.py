"""N-gram drafts: what followed the longest match of the last tokens, in the text or in an earlier answer.

SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975) without its trees: matches are found by comparing whole
rows, on static shapes, and of equally long ones the latest counts, as their frequencies brought nothing
(docs/methods/free-drafts.md). Earlier answers bring a fifth more tokens per round of forms, and nearly twice
as many of one form that is filled in again and again. Needs no model; its distribution is one-hot. Knows
token ids and rows; nothing of where answers go.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..protocols import Drafter, Needs
from ..requests import Request
from ..rows import Rows
from ..types import Draft, Scores, Verdict

CHANCES = (0.25, 0.4, 0.65, 0.75, 0.75, 0.8, 0.85, 0.9)
"""How often the token behind a match of 1, 2, ... tokens is kept, given that those before it were: counted
over 1,170 drafts of SmolLM2-135M for edits, code, forms and chat (2026-11-26). Only the length of drafts
depends on them."""

CONFIDENCE = 0.09
"""A draft ends where its chance is below this. Scoring a position is all that a copied token costs, so it is
lower than a draft model's."""

FIRST = 4
"""Last tokens that all places are compared with; the longest of the others are compared in `CANDIDATES`."""

LONGEST = 16
"""Tokens of a match that are counted."""

CANDIDATES = 16

_EMPTY = -1


class NgramDrafter(Drafter):
    """Proposes the continuation of the longest earlier match, in the row's own text or in one of the last
    `answers` answers, of each of which the first `length` tokens are kept. Of equal ones it takes that of the
    own text.

    Answers of all requests are searched for all others. No text depends on them, but how fast an answer comes
    may tell that a similar one was written before.

    With `early` a round ends where the mean chance of its rows' tokens falls below `CONFIDENCE`: this
    reads the device, which costs nothing on a CPU but cannot be captured on a GPU.
    """

    def __init__(self, *, answers: int = 64, length: int = 512, early: bool = False) -> None:
        self.answers, self.length, self.early = answers, length, early
        self._earlier = self._own = torch.empty(0, 0, dtype=torch.int32)
        self._written = torch.zeros(1, dtype=torch.int64)
        self._searched = 0, 0  # answers, and tokens of each

    @property
    def needs(self) -> Needs:
        return Needs(always=True, ends_early=self.early)

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        # Those of an admission take places of their own.
        kept = max(self.answers, batch)

        def empty(rows: int) -> Tensor:
            # The last column is for masked writes, and ends a match.
            return torch.full((rows, self.length + 1), _EMPTY, dtype=torch.int32, device=device)

        self._earlier = empty(kept + 1)  # a ring of answers; the last row is for masked writes
        self._own = empty(batch)  # the answer of each row so far
        # [1] answers put into the ring so far
        self._written = torch.zeros(1, dtype=torch.int64, device=device)
        # Where shapes may change, only as much of the ring is searched as is filled.
        self._searched = (0, 0) if self.early else (kept, self.length)

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        """Puts the answers that these rows have written before into the ring."""
        kept, done = len(self._earlier) - 1, self._own[rows]
        some = done[:, 0] != _EMPTY
        place = (self._written + some.long().cumsum(0) - 1) % kept
        self._earlier[torch.where(some, place, kept)] = done
        self._earlier[kept] = _EMPTY
        self._written += some.sum()
        self._own[rows] = _EMPTY
        if self.early:
            longest = max(self._searched[1], int((done != _EMPTY).sum(1).max()))
            self._searched = min(int(self._written), kept), longest

    def propose(self, rows: Rows, gamma: int) -> Draft:
        slot = torch.arange(rows.scratch, device=rows.lengths.device)
        own = rows.tokens[:, :-1].where(slot < rows.lengths[:, None], _EMPTY)
        last = rows.lengths[:, None] - 1 - torch.arange(LONGEST, device=slot.device)
        # [B, LONGEST], the last token first
        suffix = own.gather(1, last.clamp_min(0)).where(last >= 0, _EMPTY)
        before = slot < (rows.lengths - 1)[:, None]  # not the suffix itself
        matched, tokens = _continued(own, before, suffix, gamma)
        answers, longest = self._searched
        if answers:
            text = self._earlier[:answers, : longest + 1].flatten()[None]
            longer, others = _continued(text, text != _EMPTY, suffix.int(), gamma)
            other = longer > matched
            matched = torch.where(other, longer, matched)
            tokens = torch.where(other[:, None], others, tokens)
        usable = (tokens != _EMPTY).long().cumprod(1).sum(1)
        valid = torch.where((matched > 0) & rows.active, usable, 0)
        if self.early:
            width = int(self._worthwhile(rows, matched, valid, gamma))
            tokens, valid = tokens[:, :width], valid.clamp_max(width)
        return Draft(tokens=tokens.clamp_min(0), valid=valid)

    def _worthwhile(self, rows: Rows, matched: Tensor, valid: Tensor, gamma: int) -> Tensor:
        """The width at which tokens are still likely enough to be kept: all rows are scored at one."""
        column = torch.arange(gamma, device=valid.device)
        by_length = torch.tensor(CHANCES, device=valid.device)
        length = (matched[:, None] + column).clamp(1, len(CHANCES))
        chance = by_length[length - 1].cumprod(1).where(column < valid[:, None], 0.0)
        mean = chance.sum(0) / rows.active.sum().clamp_min(1)
        return (mean >= CONFIDENCE).sum()

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Notes what was written, each token in its place."""
        column = torch.arange(verdict.tokens.shape[1], device=verdict.tokens.device)
        written = rows.active[:, None] & (column <= verdict.num_accepted[:, None])
        place = ((rows.lengths - rows.begin)[:, None] + column).clamp_max(self.length)
        own = self._own[: rows.batch]
        own.scatter_(1, torch.where(written, place, self.length), verdict.tokens.int())
        own[:, self.length].fill_(_EMPTY)


def _continued(text: Tensor, may_end: Tensor, suffix: Tensor, gamma: int) -> tuple[Tensor, Tensor]:
    """How many of the last tokens `suffix [B, LONGEST]` match at the best place of `text [B, L]`, or `[1, L]`
    for all rows, and the `gamma` tokens behind it `[B, G]`; a match ends where it `may_end`."""
    run, count = may_end, torch.zeros((), dtype=torch.int32, device=text.device)
    for n in range(FIRST):
        shifted = torch.nn.functional.pad(text, (n, 0), value=_EMPTY)[:, : text.shape[1]]
        run = run & (shifted == suffix[:, n : n + 1]) & (suffix[:, n : n + 1] != _EMPTY)
        count = count + run
    length = text.shape[1]
    place = torch.arange(length, dtype=torch.int32, device=text.device)
    # Where most of these agree, and of those places the latest.
    ranked = (count * length + place).where(count > 0, -1)  # [B, L]
    best, end = ranked.topk(min(CANDIDATES, length), dim=1)  # [B, K]
    back = end[..., None] - torch.arange(LONGEST, device=text.device)  # [B, K, LONGEST]
    whole = text.expand(len(suffix), -1)
    read = whole.gather(1, back.clamp_min(0).flatten(1)).view(back.shape)
    same = (read == suffix[:, None]) & (back >= 0) & (suffix != _EMPTY)[:, None]
    matched = same.long().cumprod(2).sum(2).where(best >= 0, 0)  # [B, K]
    longest, which = matched.max(1)
    take = end.gather(1, which[:, None]) + 1 + torch.arange(gamma, device=text.device)
    tokens = whole.gather(1, take.clamp_max(length - 1)).long()
    return longest, tokens.where(take < length, _EMPTY)
