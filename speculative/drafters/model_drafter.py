"""Drafts of a smaller model, one token at a time.

Knows the draft model and rows; nothing of targets or schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor

from ..device import Device
from ..protocols import GreedyModel, Model, Needs, NodeModel, Processor
from ..requests import Request
from ..rounds.accept import Stream, distribution, draw, uniform
from ..rounds.choice import argmax, choose
from ..rounds.sampling import penalise
from ..rows import Rows
from ..types import Distribution, Draft, Prefix, Scores, Verdict

CONFIDENCE = 0.2
"""A draft ends where its probability, by the draft model itself, falls below this. The bundled text pair
was fastest with it; the speech pair was equally fast from 0.2 to 0.5, within the noise of repeated runs
(docs/development/log.md, 2026-11-22, where a bound learnt from measured costs gained nothing either)."""


def confidence_for(gamma: int | None, device: Device) -> float:
    """The confidence for drafts whose length the engine chooses (`gamma` None), on a device where reading a
    number costs nothing; 0 otherwise."""
    return CONFIDENCE if gamma is None and device.synchronous else 0.0


def _scores_nodes(model: Model) -> TypeGuard[NodeModel]:
    return hasattr(model, "score_at")


def _drafts(model: Model) -> TypeGuard[GreedyModel]:
    return hasattr(model, "draft_greedy")


class ModelDrafter:
    """Drafts with any `Model` of the target's vocabulary.

    `processors` are applied to the draft's logits too. They cannot change the output, only the
    acceptance, and each runs once per drafted token. In greedy rounds the drafts are the
    draft's argmax; in sampled ones they follow the row's temperature and bounds, and carry their
    probabilities. A row's penalties shape them as they shape the target.

    With `confidence` above 0 a greedy draft ends where the product of its tokens' probabilities is below
    that in every active row. (transformers' `assistant_confidence_threshold` compares each token alone.)
    The text cannot change: whether another token is drafted depends only on those before it. This reads
    the device after every drafted token, which costs nothing on a CPU but cannot be captured on a GPU:
    the engine refuses it where shapes are static. Sampled rounds draft all gamma tokens, so that
    a seeded text does not depend on the other rows. Raises `ValueError` for a confidence outside 0 to 1.
    """

    def __init__(
        self, model: Model, processors: Sequence[Processor] = (), *, confidence: float = 0.0
    ) -> None:
        if not 0 <= confidence <= 1:
            raise ValueError(f"confidence is {confidence}; it must be from 0 to 1")
        self.model = model
        self.processors = tuple(processors)
        self.confidence = confidence

    @property
    def needs(self) -> Needs:
        return Needs(vocab=self.model.vocab_size, ends_early=self.confidence > 0)

    def bind(self, target: Model) -> None:
        """Does nothing: the draft has a head of its own."""

    def distribution(self, *, sampling: bool) -> Distribution:
        return Distribution.DENSE if sampling else Distribution.ONE_HOT

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        self.model.allocate(batch, slots)

    def forwards(self, gamma: int) -> int:
        return gamma

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        self.model.prefill(rows, tokens, [r.encoder_states for r in requests])

    def catch_up(self, rows: Rows, start: Tensor, count: int) -> None:
        slots = start[:, None] + torch.arange(count, device=start.device)
        last = torch.full_like(start, count - 1)  # its logits are not read
        self._score_at(rows.tokens.gather(1, slots), start, last, rows.reach)

    def propose(self, rows: Rows, gamma: int, *, unread: int = 0) -> Draft:
        """`unread` more tokens of each row are read first, in the same forward: those that other sources
        have drafted."""
        known, lengths = rows.tokens, rows.lengths
        # After a fully accepted round the last draft was committed but never fed, so one or two tokens
        # are new to the draft. Feeding two is right in both cases (the first is idempotent then) and
        # keeps one shape. In a row of one token it is the first of the two, and the second is undefined.
        start = (lengths - 2 - unread).clamp_min(0)
        last = start[:, None] + torch.arange(2 + unread, device=start.device)
        new, node = known.gather(1, last.clamp_max(rows.scratch)), lengths - 1 - start
        shaped = bool(self.processors) or rows.mode.penalised
        if _drafts(self.model) and not (shaped or rows.mode.sampling):
            drafts = self.model.draft_greedy(
                new,
                start,
                node,
                rows.active,
                reach=rows.reach,
                gamma=gamma,
                confidence=self.confidence,
            )
            return Draft(drafts, torch.full_like(lengths, drafts.shape[1]))
        logits = self._score_at(new, start, node, rows.reach)
        tokens, probs = [], []
        if shaped:  # they read the drafts, which are not committed: one copy for all depths
            known = known.clone()
        belief = torch.ones_like(logits[:, 0, 0])  # [B] that all drafts so far are kept
        for depth in range(gamma):
            slot = lengths + depth  # of the token drafted now
            if shaped:
                logits = self._process(logits, rows, known, slot - 1)  # [B, 1, V]
            if rows.mode.sampling:
                q = distribution(rows, logits)[:, 0]
                token = draw(q, uniform(rows.sampling.seed, lengths, slot, Stream.DRAFT))
                probs.append(q)
            elif self.confidence:
                best = choose(logits)
                token, belief = best.tokens[:, 0], belief * best.logprobs[:, 0].exp()
            else:
                token = argmax(logits)[:, 0]
            tokens.append(token)
            if self.confidence and not rows.mode.sampling:
                if not bool((rows.active & (belief >= self.confidence)).any()):
                    break
            if depth + 1 < gamma:
                if shaped:
                    known.scatter_(1, slot[:, None], token[:, None])
                logits = self.model.score(token[:, None], slot, reach=rows.reach).logits
        return Draft(
            tokens=torch.stack(tokens, dim=1),
            valid=torch.full_like(lengths, len(tokens)),
            probs=torch.stack(probs, dim=1) if probs else None,
        )

    def _score_at(self, tokens: Tensor, start: Tensor, node: Tensor, reach: int) -> Tensor:
        """Logits `[B, 1, V]` after `node [B]` of `tokens [B, N]`."""
        if _scores_nodes(self.model):
            return self.model.score_at(tokens, start, node, reach=reach)
        logits = self.model.score(tokens, start, reach=reach).logits
        return logits.gather(1, node[:, None, None].expand(-1, 1, logits.shape[2]))

    def _process(self, logits: Tensor, rows: Rows, known: Tensor, last: Tensor) -> Tensor:
        prefix = Prefix(known, last[:, None], rows.begin)
        plain = logits
        for processor in self.processors:
            logits = processor(logits, prefix)
        if self.processors and getattr(self.model, "listed", None) is not None:
            # Where they forbid all tokens that the draft has, it drafts what they forbid: a guess that
            # is rejected, where a distribution over nothing would be no number.
            some = logits.isfinite().any(-1, keepdim=True)
            logits = torch.where(some, logits, plain)
        return penalise(rows, logits, prefix) if rows.mode.penalised else logits

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Does nothing: the next round overwrites rejected drafts."""
