"""A cascade: drafts that cost nothing, from a script or from the text, joined with those of a model.

Free drafts take part in three ways. Where they are good enough a row takes them *instead* of the model's, and
no forward of the model is run if all rows do; or *before* the model's, which goes on where they end, as at
the end of a sentence. Otherwise they go on *behind* the model's drafts: scoring another position is cheap.
All is decided by measurement: how often tokens of each source are kept, in each row (`Trust`), and what the
model's forwards and the target's positions cost (`worth`). Knows rows and drafters; nothing of where scripts
come from. Shapes: S sources, the rest as in `types`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..protocols import Drafter, Model, Needs
from ..requests import Request
from ..rows import Rows
from ..types import Distribution, Draft, Scores, Verdict
from .model_drafter import ModelDrafter
from .script import ScriptDrafter
from .worth import Shape, Worth, believed_tokens

DECAY = 0.9
"""Weight of a row's earlier rounds in each new one: about ten rounds are remembered."""

SHARED_DECAY = 0.99
"""The same for all rows together."""

SHARED_WORTH = 4.0
"""Judged tokens of a row that the experience of all rows is worth."""

PRIOR_KEPT, PRIOR_TRIED = 2.0, 4.0
"""Assumed at first: half of the tokens are kept."""


class Cascade:
    """Drafts of `model`, and those of `free` sources by name, the first of which that has one counts.

    Sampled rounds do not depend on what was learnt, so that a seeded text does not: the model drafts alone
    in them, and without a model the first source that has a draft. Both are distributions that the rules
    verify exactly.

    Without a `model` the free sources are all that there is. While no row has a script and no other source
    is given, the cascade is the model: it searches nothing.

    `adaptive` is for devices where reading a number costs nothing: drafts then end where another token
    would not pay for its time. Otherwise shapes are static: the model always drafts, rows with better free
    drafts take those, and nothing is added behind the model's drafts.
    """

    def __init__(
        self,
        free: Mapping[str, Drafter],
        model: Drafter | None,
        *,
        adaptive: bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not free:
            raise ValueError("a cascade needs at least one free source")
        drafters = (*free.values(), *([] if model is None else [model]))
        if any(d.distribution(sampling=False) is Distribution.TREE for d in drafters):
            raise ValueError("a cascade joins chains: a drafter of trees drafts alone")
        self.names, self.free, self.model = tuple(free), tuple(free.values()), model
        self.adaptive, self._clock = adaptive, clock
        self._worth = Worth()
        self._last: _Round | None = None

    @property
    def needs(self) -> Needs:
        own = Needs() if self.model is None else self.model.needs
        return Needs(vocab=own.vocab, ends_early=self.adaptive or own.ends_early)

    @property
    def _drafters(self) -> tuple[Drafter, ...]:
        return self.free if self.model is None else (*self.free, self.model)

    def distribution(self, *, sampling: bool) -> Distribution:
        if self.model is None:
            return Distribution.ONE_HOT
        return self.model.distribution(sampling=sampling)

    def bind(self, target: Model) -> None:
        for drafter in self._drafters:
            drafter.bind(target)

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        for drafter in self._drafters:
            drafter.allocate(batch, slots, device)
        # in the place of the model's drafts, behind them, the model
        sources = 2 * len(self.free) + 1
        self._trust = Trust(sources, batch, device)
        self._counts = torch.zeros(sources, 2, dtype=torch.int64, device=device)
        # [B] slots the model has read
        self._read = torch.zeros(batch, dtype=torch.int64, device=device)

    def forwards(self, gamma: int) -> int:
        """Those of a round in which the model drafts all."""
        return 0 if self.model is None else self.model.forwards(gamma)

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        for drafter in self._drafters:
            drafter.admit(rows, tokens, requests, taps)
        self._trust.reset(rows)
        read = [len(request.prompt) for request in requests]
        self._read[rows] = torch.tensor(read, device=self._read.device)

    def catch_up(self, rows: Rows, start: Tensor, count: int) -> None:
        if self.model is None:
            return
        self.model.catch_up(rows, start, count)
        read = self._read[: rows.batch]
        reached = torch.minimum(start + count, rows.lengths - 2)
        read.copy_(torch.where(start <= read, torch.maximum(read, reached), read))

    def counts(self) -> dict[str, SourceCounts]:
        """What every source has contributed so far: by its name in the place of the model's drafts, as
        "name behind" after them, and as "model". Reads the device."""
        behind = [f"{name} behind" for name in self.names]
        numbers = self._counts.tolist()
        return {
            name: SourceCounts(judged=tried, kept=kept)
            for name, (kept, tried) in zip((*self.names, *behind, "model"), numbers, strict=True)
        }

    def propose(self, rows: Rows, gamma: int) -> Draft:
        self._last = None
        if self.model is None:
            return self._without_model(rows, gamma)
        if rows.mode.sampling or self._idle(rows.batch):
            return self._drafted(self.model, rows, gamma)
        began = self._clock()
        lead = self._proposed(rows, gamma, first=0)
        if not self.adaptive:
            return self._static(self.model, rows, gamma, lead)
        active = rows.active
        own = (
            float(self._trust.chances(rows.batch)[-1][active].mean()) if bool(active.any()) else 0.0
        )
        shape = self._worth.lead(lead.chance[active], lead.valid[active], own, gamma)
        if shape.model:
            return self._continued(self.model, rows, lead, shape, began)
        if shape.lead:
            self._note(lead, None, torch.ones_like(active), None, 0, shape.lead, began)
            return Draft(lead.tokens[:, : shape.lead], lead.valid.clamp_max(shape.lead))
        return self._joined(self.model, rows, gamma, lead, began)

    def _idle(self, batch: int) -> bool:
        """Whether no source has anything to search, as far as the host knows."""
        return all(isinstance(d, ScriptDrafter) and d.empty(batch) for d in self.free)

    def _note(
        self,
        lead: FreeDrafts,
        tail: FreeDrafts | None,
        led: Tensor,
        taken: Tensor | None,
        width: int,
        whole: int,
        began: float,
    ) -> None:
        ended = self._clock()
        self._last = _Round(lead, tail, led, taken, width, ended, ended - began, whole)

    def _without_model(self, rows: Rows, gamma: int) -> Draft:
        lead = self._proposed(rows, gamma, first=0, learnt=not rows.mode.sampling)
        if not rows.mode.sampling:
            self._note(lead, None, torch.ones_like(rows.active), None, 0, gamma, 0.0)
        return Draft(lead.tokens, lead.valid)

    def _static(self, model: Drafter, rows: Rows, gamma: int, lead: FreeDrafts) -> Draft:
        """The model's drafts, or in rows where they are likelier the free ones."""
        own = self._drafted(model, rows, gamma)
        led = (lead.valid > 0) & (lead.chance > self._trust.chances(rows.batch)[-1])
        tokens = torch.where(led[:, None], lead.tokens[:, : own.tokens.shape[1]], own.tokens)
        self._note(lead, None, led, None, own.tokens.shape[1], gamma, 0.0)
        return Draft(tokens, torch.where(led, lead.valid, own.valid))

    def _continued(
        self, model: Drafter, rows: Rows, lead: FreeDrafts, shape: Shape, began: float
    ) -> Draft:
        """Free drafts, and the model's behind them."""
        taken = lead.valid.clamp_max(shape.lead)
        own = self._timed(model, after(rows, lead.tokens, taken), shape.model)
        drafted = own.tokens.shape[1]
        column = torch.arange(shape.lead + drafted, device=taken.device)
        behind = (column - taken[:, None]).clamp(0, drafted - 1)
        first = lead.tokens[:, column.clamp_max(lead.tokens.shape[1] - 1)]
        tokens = torch.where(column < taken[:, None], first, own.tokens.gather(1, behind))
        led = torch.zeros_like(rows.active)
        self._note(lead, None, led, taken, drafted, shape.lead + drafted, began)
        return Draft(tokens, taken + own.valid)

    def _joined(
        self, model: Drafter, rows: Rows, gamma: int, lead: FreeDrafts, began: float
    ) -> Draft:
        """The model's drafts and free ones behind them, or in rows where they are better free ones alone."""
        own = self._timed(model, rows, gamma)
        drafted, active = own.tokens.shape[1], rows.active
        tail, tokens, valid = None, own.tokens, own.valid
        behind = self._trust.chances(rows.batch)[len(self.free) : 2 * len(self.free)].amax(0)
        if drafted < gamma and self._worth.tail_may_pay(behind[active]):
            reached = after(rows, own.tokens, torch.full_like(rows.lengths, drafted))
            tail = self._proposed(reached, gamma - drafted, first=len(self.free))
            most = tail.tokens.shape[1]
            more = self._worth.tail(tail.chance[active], tail.valid[active], most)
            tail = replace(tail, tokens=tail.tokens[:, :more], valid=tail.valid.clamp_max(more))
            tokens = torch.cat([tokens, tail.tokens], dim=1)
            valid = valid + torch.where(valid == drafted, tail.valid, 0)
        led = self._better(lead, drafted)
        whole = tokens.shape[1]
        tokens = torch.where(led[:, None], lead.tokens[:, :whole], tokens)
        valid = torch.where(led, lead.valid.clamp_max(whole), valid)
        self._note(lead, tail, led, None, drafted, whole, began)
        return Draft(tokens, valid)

    def _timed(self, model: Drafter, rows: Rows, gamma: int) -> Draft:
        before = self._clock()
        own = self._drafted(model, rows, gamma)
        self._worth.learn_model(own.tokens.shape[1], self._clock() - before)
        return own

    def _drafted(self, model: Drafter, rows: Rows, gamma: int) -> Draft:
        """The model's drafts, after it has read what was committed without it."""
        if self.adaptive:
            missing = torch.where(rows.active, rows.lengths - 2 - self._read[: rows.batch], 0)
            unread = max(0, int(missing.max()))
        else:
            unread = gamma
        if isinstance(model, ModelDrafter):
            return model.propose(rows, gamma, unread=unread)
        if unread:
            model.catch_up(rows, (rows.lengths - 2 - unread).clamp_min(0), unread)
        return model.propose(rows, gamma)

    def _proposed(self, rows: Rows, gamma: int, first: int, *, learnt: bool = True) -> FreeDrafts:
        """Drafts of the likeliest free source that has any, by row; of the first one where nothing `learnt`
        is to count. The sources are numbered from `first`."""
        chances = self._trust.chances(rows.batch)[first : first + len(self.free)]
        found: FreeDrafts | None = None
        for number, (drafter, chance) in enumerate(zip(self.free, chances, strict=True), first):
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

    def _better(self, lead: FreeDrafts, drafted: int) -> Tensor:
        """Rows whose free drafts are likelier to be kept than `drafted` ones of the model `[B]`."""
        model = self._trust.chances(len(lead.valid))[-1]
        own = sum(model**depth for depth in range(1, drafted + 1))
        return believed_tokens(lead.chance, lead.valid, lead.tokens.shape[1]).sum(1) > own

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        last = self._last
        if last is None:  # the model alone, or nothing to learn from
            self._note_read(rows, verdict, torch.full_like(rows.lengths, draft.tokens.shape[1]))
            return
        self._last = None
        accepted, active = verdict.num_accepted, rows.active
        if self.adaptive and self.model is not None:
            self._learn_prices(rows, last, verdict, self._clock())
        self._learn_lead(last, verdict, active)
        taken = torch.zeros_like(accepted) if last.taken is None else last.taken
        own = torch.where(last.led, 0, taken + last.width)
        if last.width:
            judged = active & ~last.led & (accepted >= taken)
            counted = (own.minimum(draft.valid) - taken).clamp_min(0)
            kept = accepted - taken
            self._learn(-1, judged, kept.minimum(counted), (kept + 1).minimum(counted))
        if last.tail is not None:
            kept = (accepted - own).clamp_min(0)
            tried = torch.where(accepted >= own, (kept + 1).minimum(last.tail.valid), 0)
            for number in range(len(self.free), 2 * len(self.free)):
                self._learn(number, active & ~last.led & (last.tail.source == number), kept, tried)
        if last.width:
            self._note_read(rows, verdict, own)

    def _learn_lead(self, last: _Round, verdict: Verdict, active: Tensor) -> None:
        """What the free drafts would have brought in the place of the model's, whether they were taken or
        not: the target's tokens say so."""
        nodes = min(verdict.tokens.shape[1], last.lead.tokens.shape[1])
        column = torch.arange(nodes, device=active.device)
        known = (column <= verdict.num_accepted[:, None]) & (column < last.lead.valid[:, None])
        same = (verdict.tokens[:, :nodes] == last.lead.tokens[:, :nodes]) & known
        kept = same.long().cumprod(1).sum(1)
        tried = torch.minimum(kept + 1, known.sum(1))
        for number in range(len(self.free)):
            self._learn(number, active & (last.lead.source == number), kept, tried)

    def _learn(self, source: int, mask: Tensor, kept: Tensor, tried: Tensor) -> None:
        kept, tried = torch.where(mask, kept, 0), torch.where(mask, tried, 0)
        self._trust.learn(source, kept, tried)
        self._counts[source] += torch.stack([kept.sum(), tried.sum()])

    def _learn_prices(self, rows: Rows, last: _Round, verdict: Verdict, now: float) -> None:
        nodes = last.whole + 1
        self._worth.learn_scores(nodes, now - last.ended)
        between = rows.active & (last.lead.valid > 0)
        if last.width and last.taken is None and bool(between.any()):
            accepted = verdict.num_accepted[between]
            self._worth.learn_round(accepted, last.width, nodes, last.spent)

    def _note_read(self, rows: Rows, verdict: Verdict, own: Tensor) -> None:
        """The model has read the pending token and its own drafts but the last, as far as they were kept."""
        read = torch.minimum(
            rows.lengths - 1 + own.clamp_min(1), rows.lengths + verdict.num_accepted
        )
        known = self._read[: rows.batch]
        known.copy_(torch.where(rows.active, read, known))


@dataclass(frozen=True)
class SourceCounts:
    """What one source has proposed, and how much of it was kept. A token that follows a rejected one was not
    judged, and does not count."""

    judged: int
    kept: int


@dataclass(frozen=True)
class FreeDrafts:
    """Proposals of the free sources, merged by row."""

    tokens: Tensor  # [B, G]
    valid: Tensor  # [B]
    source: Tensor  # [B] number of the source
    chance: Tensor  # [B] that a token is kept


@dataclass
class _Round:
    """What `observe` must know of the proposal before it."""

    lead: FreeDrafts  # what the free sources proposed in the place of the model's drafts
    tail: FreeDrafts | None
    led: Tensor  # [B] rows that took free drafts alone
    taken: Tensor | None  # [B] free drafts before the model's; None: the model drafted first
    width: int  # drafts of the model; 0 where it did not run
    ended: float  # when the proposal was complete
    spent: float  # seconds of the whole proposal
    whole: int  # drafts submitted


def after(rows: Rows, drafts: Tensor, count: Tensor) -> Rows:
    """The rows as they are if the first `count` `[B]` of their drafts `[B, W]` are kept."""
    column = torch.arange(drafts.shape[1], device=drafts.device)
    slot = torch.where(column < count[:, None], rows.lengths[:, None] + column, rows.scratch)
    tokens = rows.tokens.scatter(1, slot.clamp_max(rows.scratch), drafts)
    return replace(rows, tokens=tokens, lengths=(rows.lengths + count).clamp_max(rows.scratch))


class Trust:
    """The chance that a token of each source is kept, given that those before it were `[S, B]`."""

    def __init__(self, sources: int, batch: int, device: torch.device) -> None:
        self._kept = torch.zeros(sources, batch, device=device)
        self._tried = torch.zeros(sources, batch, device=device)
        self._shared = torch.tensor([PRIOR_KEPT, PRIOR_TRIED], device=device).repeat(sources, 1)

    def reset(self, rows: Tensor) -> None:
        """Forgets what was learnt on these rows alone."""
        self._kept[:, rows] = 0
        self._tried[:, rows] = 0

    def chances(self, batch: int) -> Tensor:
        """`[S, B]` of the first `batch` rows, above 0 and below 1."""
        shared = (self._shared[:, :1] + 0.5) / (self._shared[:, 1:] + 1)
        kept = self._kept[:, :batch] + SHARED_WORTH * shared
        return kept / (self._tried[:, :batch] + SHARED_WORTH)

    def learn(self, source: int, kept: Tensor, tried: Tensor) -> None:
        """Counts of one round `[B]`: tokens of the source that were judged, and kept."""
        batch, some = len(kept), tried > 0
        for total, new in ((self._kept[source], kept), (self._tried[source], tried)):
            total[:batch] = torch.where(some, DECAY * total[:batch] + new, total[:batch])
        sums = torch.stack([kept.sum(), tried.sum()]).to(self._shared.dtype)
        shared = self._shared[source]
        shared.copy_(torch.where(some.any(), SHARED_DECAY * shared + sums, shared))
