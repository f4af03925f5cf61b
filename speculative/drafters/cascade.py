"""A cascade: drafts that cost nothing, from a script or from the text, joined with those of a model.

Free drafts take part in two ways. Where they are good enough a row takes them *instead* of the model's, and
no forward of the model is run if all rows do. Otherwise they go on *behind* the model's drafts: scoring
another position is cheap. Both are decided by measurement: how often tokens of each source are kept, in
each row, and what the model's forwards and the target's positions cost. Knows rows and drafters; nothing of
where scripts come from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..drafts import Distribution, Draft, Scores, Verdict
from ..protocols import Drafter, Model, Needs
from ..requests import Request
from ..rows import Rows
from .model_drafter import ModelDrafter
from .prices import Line, Mean
from .script import ScriptDrafter
from .trust import Trust

MEASURED_FIRST = 4
"""Rounds with the model's drafts before anything is decided by prices."""

PROBE_EVERY = 16
"""Rounds after which drafts behind the model's are tried although they would not pay: what they bring is
only known where all drafts of the model were kept."""


@dataclass(frozen=True)
class SourceCounts:
    """What one source has proposed, and how much of it was kept. A token that follows a rejected one was not
    judged, and does not count."""

    judged: int
    kept: int


@dataclass(frozen=True)
class _Free:
    """Proposals of the free sources, merged by row."""

    tokens: Tensor  # [B, G]
    valid: Tensor  # [B]
    source: Tensor  # [B] index of the source
    chance: Tensor  # [B] that a token is kept


@dataclass
class _Round:
    """What `observe` must know of the proposal before it."""

    lead: _Free  # what the free sources proposed in the place of the model's drafts
    tail: _Free | None
    led: Tensor  # [B] rows that took the free drafts
    width: int  # drafts of the model; 0 where it did not run
    ended: float  # when the proposal was complete
    spent: float  # seconds of the whole proposal
    whole: int  # drafts submitted


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
        self.names, self.free, self.model = tuple(free), tuple(free.values()), model
        self.adaptive, self._clock = adaptive, clock
        self._model_price, self._score_price = Line(), Line()
        self._tokens, self._seconds = Mean(), Mean()  # of rounds with the model's drafts
        self._full = Mean()  # share of such rounds whose drafts were all kept
        self._last: _Round | None = None
        self._untried = 0  # rounds since drafts behind the model's were tried

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
        sources = (
            2 * len(self.free) + 1
        )  # in the place of the model's drafts, behind them, the model
        self._trust = Trust(sources, batch, device)
        self._counts = torch.zeros(sources, 2, dtype=torch.int64, device=device)
        self._read = torch.zeros(
            batch, dtype=torch.int64, device=device
        )  # slots the model has read

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
        width = self._lead_width(lead, rows.active, gamma)
        if width:
            self._note(lead, None, torch.ones_like(rows.active), 0, width, began)
            return Draft(lead.tokens[:, :width], lead.valid.clamp_max(width))
        return self._joined(self.model, rows, gamma, lead, began)

    def _idle(self, batch: int) -> bool:
        """Whether no source has anything to search, as far as the host knows."""
        return all(isinstance(d, ScriptDrafter) and d.empty(batch) for d in self.free)

    def _note(
        self, lead: _Free, tail: _Free | None, led: Tensor, width: int, whole: int, began: float
    ) -> None:
        ended = self._clock()
        self._last = _Round(lead, tail, led, width, ended, ended - began, whole)

    def _without_model(self, rows: Rows, gamma: int) -> Draft:
        lead = self._proposed(rows, gamma, first=0, learnt=not rows.mode.sampling)
        if not rows.mode.sampling:
            self._note(lead, None, torch.ones_like(rows.active), 0, gamma, 0.0)
        return Draft(lead.tokens, lead.valid)

    def _static(self, model: Drafter, rows: Rows, gamma: int, lead: _Free) -> Draft:
        """The model's drafts, or in rows where they are likelier the free ones."""
        own = self._drafted(model, rows, gamma)
        led = (lead.valid > 0) & (lead.chance > self._trust.chances(rows.batch)[-1])
        tokens = torch.where(led[:, None], lead.tokens[:, : own.tokens.shape[1]], own.tokens)
        self._note(lead, None, led, own.tokens.shape[1], gamma, 0.0)
        return Draft(tokens, torch.where(led, lead.valid, own.valid))

    def _joined(self, model: Drafter, rows: Rows, gamma: int, lead: _Free, began: float) -> Draft:
        """The model's drafts and free ones behind them, or in rows where they are better free ones alone."""
        before = self._clock()
        own = self._drafted(model, rows, gamma)
        drafted = own.tokens.shape[1]
        self._model_price.learn(drafted, self._clock() - before)
        tail, tokens, valid = None, own.tokens, own.valid
        if drafted < gamma and self._tail_may_pay(rows.active):
            tail = self._proposed(_after(rows, own.tokens), gamma - drafted, first=len(self.free))
            more = self._tail_width(tail, rows.active)
            tail = replace(tail, tokens=tail.tokens[:, :more], valid=tail.valid.clamp_max(more))
            tokens = torch.cat([tokens, tail.tokens], dim=1)
            valid = valid + torch.where(valid == drafted, tail.valid, 0)
        led = self._better(lead, drafted)
        whole = tokens.shape[1]
        tokens = torch.where(led[:, None], lead.tokens[:, :whole], tokens)
        valid = torch.where(led, lead.valid.clamp_max(whole), valid)
        self._note(lead, tail, led, drafted, whole, began)
        return Draft(tokens, valid)

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

    def _proposed(self, rows: Rows, gamma: int, first: int, *, learnt: bool = True) -> _Free:
        """Drafts of the likeliest source that has any, by row; of the first one where nothing `learnt` is to
        count. `first` is the number of the first source in this place."""
        chances = self._trust.chances(rows.batch)
        found: _Free | None = None
        for number, drafter in enumerate(self.free, start=first):
            draft = drafter.propose(rows, gamma)
            if found is None:
                source = torch.full_like(draft.valid, number)
                found = _Free(draft.tokens, draft.valid, source, chances[number])
                continue
            better = (chances[number] > found.chance) & learnt
            takes = (draft.valid > 0) & ((found.valid == 0) | better)
            found = _Free(
                torch.where(takes[:, None], draft.tokens, found.tokens),
                torch.where(takes, draft.valid, found.valid),
                torch.where(takes, number, found.source),
                torch.where(takes, chances[number], found.chance),
            )
        assert found is not None
        return found

    def _lead_width(self, lead: _Free, active: Tensor, gamma: int) -> int:
        """Free drafts to take in all rows in the place of the model's; 0: the model's are better."""
        if not self._measured or not bool(active.any()):
            return 0
        believed = _chain(lead, lead.tokens.shape[1])[active].sum(0).tolist()  # tokens by depth
        best, best_rate, tokens = 0, self._rate(active), float(active.sum())
        for width, more in enumerate(believed, start=1):
            tokens += more
            rate = tokens / self._score_price.at(width + 1)
            if more and rate > best_rate:
                best, best_rate = width, rate
        return best

    def _tail_may_pay(self, active: Tensor) -> bool:
        """Whether the first free draft behind the model's would be worth its time, if a source has one."""
        self._untried += 1
        if not self._measured or self._untried >= PROBE_EVERY:
            self._untried = 0
            return True
        behind = self._trust.chances(len(active))[len(self.free) : 2 * len(self.free)]
        hoped = (
            float(behind.amax(0)[active].sum()) * self._full.value if bool(active.any()) else 0.0
        )
        return hoped > self._rate(active) * self._score_price.slope

    @property
    def _measured(self) -> bool:
        return self._model_price.rounds >= MEASURED_FIRST and self._seconds.value > 0

    def _rate(self, active: Tensor) -> float:
        """Tokens per second of all rows in rounds with the model's drafts."""
        return self._tokens.value * int(active.sum()) / self._seconds.value

    def _tail_width(self, tail: _Free, active: Tensor) -> int:
        """Free drafts behind the model's that are worth the time of scoring them."""
        if not self._measured or not self._untried:
            return tail.tokens.shape[1]  # to learn what they cost and bring
        rate = self._rate(active)
        believed = (_chain(tail, tail.tokens.shape[1])[active].sum(0) * self._full.value).tolist()
        worth = [more > rate * self._score_price.slope for more in believed]
        return worth.index(False) if False in worth else len(worth)

    def _better(self, lead: _Free, drafted: int) -> Tensor:
        """Rows whose free drafts are likelier to be kept than `drafted` ones of the model `[B]`."""
        model = self._trust.chances(len(lead.valid))[-1]
        own = sum(model**depth for depth in range(1, drafted + 1))
        return _chain(lead, lead.tokens.shape[1]).sum(1) > own

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
        own = torch.where(last.led, 0, torch.full_like(accepted, last.width))
        if last.width:
            judged, counted = active & ~last.led, own.minimum(draft.valid)
            self._learn(-1, judged, accepted.minimum(counted), (accepted + 1).minimum(counted))
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
        scoring = now - last.ended
        self._score_price.learn(last.whole + 1, scoring)
        if last.width and bool(rows.active.any()):
            accepted = verdict.num_accepted[rows.active].float()
            self._tokens.learn(float(accepted.mean()) + 1)
            self._seconds.learn(last.spent + self._score_price.at(last.whole + 1))
            self._full.learn(float((accepted >= last.width).float().mean()))

    def _note_read(self, rows: Rows, verdict: Verdict, own: Tensor) -> None:
        """The model has read the pending token and its own drafts but the last, as far as they were kept."""
        read = torch.minimum(
            rows.lengths - 1 + own.clamp_min(1), rows.lengths + verdict.num_accepted
        )
        known = self._read[: rows.batch]
        known.copy_(torch.where(rows.active, read, known))


def _chain(free: _Free, width: int) -> Tensor:
    """The chance that each free draft and all before it are kept `[B, G]`."""
    column = torch.arange(width, device=free.valid.device)
    powers = free.chance[:, None] ** (column + 1)
    return torch.where(column < free.valid[:, None], powers, 0.0)


def _after(rows: Rows, drafts: Tensor) -> Rows:
    """The rows as they are if all drafts `[B, W]` are kept."""
    slot = rows.lengths[:, None] + torch.arange(drafts.shape[1], device=drafts.device)
    slot = slot.clamp_max(rows.scratch)
    tokens = rows.tokens.scatter(1, slot, drafts)
    lengths = (rows.lengths + drafts.shape[1]).clamp_max(rows.scratch)
    return replace(rows, tokens=tokens, lengths=lengths)
