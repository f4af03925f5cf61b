"""Drafts copied from a script, the request's hint: a text that the answer probably follows, such as the
user's own text or an earlier answer to the same question.

The answer is aligned with the script again in every round, by its last text tokens, so a word that differs
costs the drafts of one round and not the rest of the script (SpecASR and `Request.hint` with exact n-grams
lose it). Needs no model; its distribution is one-hot. Static shapes, no host sync: scripts are searched by
comparing all of their places. Knows token ids; nothing of where a hint comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..protocols import Drafter, Needs
from ..requests import Request
from ..rounds.round import no_draft
from ..rows import Rows
from ..types import Draft

LONGEST = 4
"""Last text tokens of the answer that are looked up."""

RECENT = 16
"""Last tokens of the answer among which these are looked for; the others are special."""

NEAR = 8
"""Script tokens between the expected place and a match that one agreeing token suffices for."""

NEAR_WORTH = 2
"""Agreeing tokens that being near is worth: after a correction, the next common token decides, and not two
that also follow each other somewhere else in a long script."""

LOST_AFTER = 8
"""Text tokens without a match after which nothing is drafted until there is one."""

BELIEVED = (2, 4)
"""Drafts behind a place where none, or one, of the last tokens agrees; behind more, all that there are."""

_EMPTY = -1


@dataclass(frozen=True)
class Breaks:
    """Text tokens behind which an answer has special ones that its script lacks: ends of sentences, where
    Whisper writes `count` timestamps.

    Drafts end with such a token, and go on behind the special ones; an answer begins with one as well. What
    they are is left to another drafter. A prompt that ends with the token `none` asks for no special ones.
    """

    after: Tensor  # [V] bool, by token id
    count: int = 2
    none: int | None = None


class ScriptDrafter(Drafter):
    """Proposes what follows in the request's hint, the script, behind the place that the answer has reached.

    Tokens of `special_from` and above (timestamps, marks) are no text: neither those of the answer nor those
    of the script take part in the alignment. Those of the script are proposed in their places, as long as
    the answer has not written as many by itself.

    The place is the match of the last `LONGEST` text tokens that is longest and nearest to where the answer
    should be; one agreeing token suffices near that place, two anywhere. Where nothing agrees, drafting goes
    on at the expected place, which takes a correction for a replaced token (offset 1 in the script); a word
    that was added or left out (offsets 0 and 2) is found by the next token that agrees.

    `slots` bounds a script; a longer one keeps its first tokens. `breaks` say where special tokens follow
    that the script does not have. With `early` a round is as wide as its longest draft: this reads the
    device, which costs nothing on a CPU but cannot be captured on a GPU.
    """

    def __init__(
        self,
        *,
        slots: int = 1024,
        special_from: int | None = None,
        breaks: Breaks | None = None,
        early: bool = False,
    ) -> None:
        self.slots, self.breaks, self.early = slots, breaks, early
        self.special_from = torch.iinfo(torch.int64).max if special_from is None else special_from
        self._whole = self._text = self._origin = torch.empty(0, 0, dtype=torch.int64)
        self._place = self._count = torch.empty(0, dtype=torch.int64)
        self._used: list[int] = []

    @property
    def needs(self) -> Needs:
        return Needs(ends_early=self.early)

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        def filled(value: int, *shape: int) -> Tensor:
            return torch.full((batch, *shape), value, dtype=torch.int64, device=device)

        self._whole = filled(_EMPTY, self.slots + 1)  # the script, always with an end
        self._text = filled(_EMPTY, self.slots)  # its text tokens
        # Where they are in it; its end behind the last one.
        self._origin = filled(0, self.slots + 1)
        self._place = filled(0)  # text tokens of the script before the place of the last proposal
        self._count = filled(0)  # text tokens of the answer then
        # Where shapes may change, only as much of the tables is searched as the longest script fills.
        self._used = [0] * batch

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        device = self._whole.device
        scripts = [request.hint[: self.slots] for request in requests]
        longest = max(map(len, scripts), default=0)
        given = torch.full((len(scripts), longest), _EMPTY)
        for row, script in zip(given, scripts, strict=True):
            row[: len(script)] = torch.tensor(script, dtype=torch.int64)
        whole = torch.full((len(scripts), self.slots + 1), _EMPTY, device=device)
        whole[:, :longest] = given.to(device)
        is_text = (whole != _EMPTY) & (whole < self.special_from)
        rank = torch.where(is_text, is_text.long().cumsum(1) - 1, self.slots)
        end = (whole != _EMPTY).sum(1, keepdim=True)
        slot = torch.arange(self.slots + 1, device=device).expand_as(whole)
        text = torch.full_like(whole, _EMPTY).scatter(1, rank, torch.where(is_text, whole, _EMPTY))
        origin = end.expand_as(whole).clone().scatter(1, rank, torch.where(is_text, slot, end))
        self._whole[rows], self._text[rows] = whole, text[:, : self.slots]
        self._origin[rows] = origin
        self._place[rows] = self._count[rows] = 0
        if self.early:
            for row, used in zip(rows.tolist(), end[:, 0].tolist(), strict=True):
                self._used[row] = used

    def propose(self, rows: Rows, gamma: int) -> Draft:
        batch = rows.batch
        width = max(self._used[:batch]) if self.early else self.slots
        if not width:  # no row has a script
            return no_draft(rows)
        place, agreeing, drift = self._align(rows, self._text[:batch, :width])
        first = self._first(rows, place, agreeing)
        take = first[:, None] + torch.arange(gamma, device=first.device)  # [B, G]
        tokens = self._whole[:batch].gather(1, take.clamp_max(self.slots))
        usable = (tokens != _EMPTY).long().cumprod(1).sum(1)
        few, more = BELIEVED
        limit = torch.where(agreeing > 1, gamma, torch.where(agreeing > 0, more, few))
        lost = (agreeing == 0) & (drift > LOST_AFTER)
        valid = torch.where(lost, 0, torch.minimum(usable, limit))
        if self.breaks is not None:
            valid = torch.minimum(valid, self._unbroken(self.breaks, rows, tokens))
        if self.early:
            valid = torch.where(rows.active, valid, 0)
            tokens = tokens[:, : int(valid.amax())]
        return Draft(tokens=tokens.clamp_min(0), valid=valid)

    def _unbroken(self, breaks: Breaks, rows: Rows, tokens: Tensor) -> Tensor:
        """How many of the proposed tokens `[B, G]` come before special ones that the script lacks `[B]`."""
        gamma, last = tokens.shape[1], breaks.after.shape[0] - 1
        after = breaks.after.to(tokens.device)
        ends = after[tokens.clamp(0, last)] & (tokens >= 0) & (tokens < self.special_from)
        # A script that has special tokens of its own there goes on.
        following = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=_EMPTY)
        ends &= following < self.special_from
        column = torch.arange(1, gamma + 1, device=tokens.device)
        upto = torch.where(ends, column, gamma).amin(1)
        recent, _, written = self._recent(rows)
        before = recent.gather(1, written.clamp_max(RECENT - 1)[:, None])[:, 0]
        inside = rows.lengths - 1 - written >= rows.begin  # else the answer has no text yet
        broken = (before < self.special_from) & after[before.clamp(0, last)]
        waits = torch.where(
            inside, (broken | (written > 0)) & (written < breaks.count), written == 0
        )
        own = tokens[:, 0] >= self.special_from  # the script's own special token
        unbroken = torch.where(waits & ~own, 0, upto)
        if breaks.none is None:
            return unbroken
        asked = rows.tokens.gather(1, (rows.begin - 1).clamp_min(0)[:, None])[:, 0] != breaks.none
        return torch.where(asked, unbroken, gamma)

    def _align(self, rows: Rows, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Text tokens of the script before the place that the answer has reached `[B]`, how many of the last
        ones agree there `[B]`, and how many were written since that place was last known `[B]`."""
        last, count = self._answer(rows)
        drift = count - self._count[: rows.batch]
        size = (text != _EMPTY).sum(1)
        expected = (self._place[: rows.batch] + drift).clamp_min(0).minimum(size)
        # agree[b, j]: how many of the last tokens are those of the script up to and including j
        run, agree = torch.ones_like(text, dtype=torch.bool), torch.zeros_like(text)
        for n in range(LONGEST):
            ends = torch.nn.functional.pad(text, (n, 0), value=_EMPTY)[:, : text.shape[1]]
            run = run & (ends == last[:, n : n + 1]) & (last[:, n : n + 1] != _EMPTY)
            agree = agree + run
        behind = torch.arange(1, text.shape[1] + 1, device=text.device)
        distance = (behind - expected[:, None]).abs()
        near = distance <= NEAR
        matches = (agree > 1) | ((agree > 0) & near)
        worth = (agree + NEAR_WORTH * near) * (2 * self.slots) - distance
        best = torch.where(matches, worth, -1).max(1)
        found = best.values >= 0
        place = torch.where(found, best.indices + 1, expected)
        agreeing = torch.where(found, agree.gather(1, best.indices[:, None])[:, 0], 0)
        self._place[: rows.batch] = torch.where(found, place, self._place[: rows.batch])
        self._count[: rows.batch] = torch.where(found, count, self._count[: rows.batch])
        return place, agreeing, drift

    def _answer(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """The last text tokens of the answer, the latest one first `[B, LONGEST]`, -1 where there are fewer,
        and how many it has `[B]`."""
        slot = torch.arange(rows.scratch, device=rows.tokens.device)
        tokens = rows.tokens[:, :-1]
        written = (slot >= rows.begin[:, None]) & (slot < rows.lengths[:, None])
        count = (written & (tokens < self.special_from)).sum(1)
        recent, answered, _ = self._recent(rows)
        is_text = answered & (recent < self.special_from)
        rank = torch.where(is_text, is_text.long().cumsum(1) - 1, RECENT)
        last = torch.full((rows.batch, RECENT + 1), _EMPTY, device=slot.device)
        last = last.scatter(1, rank, torch.where(is_text, recent, _EMPTY))
        return last[:, :LONGEST], count

    def _first(self, rows: Rows, place: Tensor, agreeing: Tensor) -> Tensor:
        """Where in the whole script the proposal begins `[B]`: behind the last text token, and behind as many
        special ones as the answer has written since, up to the next text token."""
        whole, origin = self._whole[: rows.batch], self._origin[: rows.batch]
        _, _, written = self._recent(rows)
        before = origin.gather(1, (place - 1).clamp_min(0)[:, None])[:, 0] + 1
        before = torch.where(place > 0, before, 0)
        following = origin.gather(1, place.clamp_max(whole.shape[1] - 1)[:, None])[:, 0]
        return torch.minimum(before + written, torch.maximum(following, before))

    def _recent(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """The row's last tokens, the latest one first `[B, RECENT]`, which of them are of the answer, and how
        many special ones it ends with `[B]`."""
        at = rows.lengths[:, None] - 1 - torch.arange(RECENT, device=rows.tokens.device)
        recent, answered = rows.tokens.gather(1, at.clamp_min(0)), at >= rows.begin[:, None]
        special = answered & (recent >= self.special_from)
        return recent, answered, special.long().cumprod(1).sum(1)
