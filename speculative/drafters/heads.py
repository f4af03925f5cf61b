"""Drafts of heads on a target's hidden states: EAGLE-3 and MTP layers.

A head reads the target's states of committed tokens (taps), shares its embeddings and output layer, and keeps
keys and values of its own. It drafts one token after another (Li et al. 2025, 2503.01840, section 3). After
each verdict one pass reads the committed tokens with the target's true states, over what the draft steps
wrote from the head's own; what rejected drafts have left is written over before it is read.

Knows rows, taps and records of heads; nothing of targets' layers, of formats or files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import embedding as lookup

from ..errors import LoadError
from ..models.heads.records import Head, Output, Run
from ..models.slot_model import at_node, chain_mask
from ..protocols import Model, Needs
from ..requests import Request
from ..rows import Rows
from ..types import Distribution, Draft, Scores, Verdict
from .model_drafter import Picker

if TYPE_CHECKING:
    from ..models.modules import SlotCache


class HeadDrafter:
    """Drafts with a head, of any target whose embeddings and output layer can be shared.

    Position t of the head pairs the target's state at slot t with the token at slot t + 1, so that a row of
    L tokens has L - 1 positions, and one of a single token is decoded plainly for a round. The last committed
    position gives the first draft of the next round.

    `confidence` ends greedy drafts early, as in `ModelDrafter`. Raises ValueError for a confidence outside 0
    to 1, and LoadError, when it is bound, for a target that does not share its embeddings and output layer.
    """

    def __init__(self, head: Head, *, confidence: float = 0.0) -> None:
        if not 0 <= confidence <= 1:
            raise ValueError(f"confidence is {confidence}; it must be from 0 to 1")
        self.record, self.confidence = head, confidence
        self._state = torch.empty(0)  # [B, H] of each row's last position
        self._shared: SharedLayers | None = None
        self._scorer: Scorer | None = None
        self._cache: SlotCache | None = None

    @property
    def needs(self) -> Needs:
        return Needs(
            taps=self.record.taps.layers,
            prompt=True,
            always=True,
            ends_early=self.confidence > 0,
        )

    def bind(self, target: Model) -> None:
        self._shared = shared = SharedLayers.of(target, self.record.embedding)
        self._scorer = Scorer(self.record.output, shared.head, target.vocab_size)

    def distribution(self, *, sampling: bool) -> Distribution:
        return Distribution.DENSE if sampling else Distribution.ONE_HOT

    def catch_up(self, rows: Rows, start: Tensor, count: int) -> None:
        """Does nothing: every round is observed, as states cannot be caught up from tokens."""

    def _pick(self, picker: Picker, states: Tensor) -> Tensor:
        """The next draft `[B]`, of states `[B, 1, H]`."""
        assert self._scorer is not None, "bind() comes before the first forward"
        logits = self._scorer.rows(states)
        if picker.reads_all:
            return picker.pick(self._scorer.whole(logits))
        return picker.pick(logits, self._scorer.ids)

    def _allocated(self) -> SlotCache:
        if self._cache is None:
            raise RuntimeError("allocate() comes before the first forward")
        return self._cache

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        weight = self.record.output.norm
        # It has the interface of transformers' caches, as layers of its models are heads too; importing that
        # takes seconds, and most drafters are not heads.
        from ..models.modules import SlotCache

        self._cache = SlotCache(
            batch=batch,
            slots=slots,
            layers=self.record.body.shapes,
            dtype=weight.dtype,
            device=device,
        )
        self._state = torch.zeros((batch, len(weight)), dtype=weight.dtype, device=device)

    def forwards(self, gamma: int) -> int:
        """The first draft's forward is that of `observe`."""
        return gamma

    @torch.inference_mode()
    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        cache, state = self._allocated(), self._state
        lengths = torch.tensor([len(r.prompt) for r in requests], device=tokens.device)
        # The last position has no token after it yet; its keys are written over by the first round.
        after = tokens.roll(-1, 1)
        slots = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        mask = chain_mask(slots, tokens.shape[1], state.dtype)
        feature = self.record.taps.feature(_given(taps, "prompts").to(state.dtype))
        run = Run(slots, mask, cache.prefill(rows))
        states = self.record.step(self._embed(after), feature, run)
        state[rows] = at_node(states, (lengths - 2).clamp_min(0))[:, 0]

    def propose(self, rows: Rows, gamma: int) -> Draft:
        states = self._state[: rows.batch, None]  # [B, 1, H]
        picker, lengths = Picker(rows, self.confidence), rows.lengths
        for depth in range(gamma):
            token = self._pick(picker, states)
            if picker.ended:
                break
            if depth + 1 < gamma:
                feature = self.record.next_feature(states)
                states = self._read(token[:, None], feature, lengths - 1 + depth, rows.reach)
        return picker.draft(torch.where(lengths > 1, gamma, 0))

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        state = self._state
        feature = self.record.taps.feature(_given(scores.taps, "every round").to(state.dtype))
        states = self._read(verdict.tokens, feature, rows.lengths - 1, rows.reach)
        # Where a row takes no part, nothing is committed, and what was written is written again.
        last = at_node(states, verdict.num_accepted)[:, 0]
        state[: rows.batch] = torch.where(rows.active[:, None], last, state[: rows.batch])

    def _read(self, tokens: Tensor, feature: Tensor, start: Tensor, reach: int) -> Tensor:
        """States `[B, N, H]` of the positions from slot `start [B]` on, whose next tokens are these."""
        slots = start[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        mask = chain_mask(slots, reach, self._state.dtype)
        run = Run(slots, mask, self._allocated().decode(slots, reach))
        return self.record.step(self._embed(tokens), feature, run)

    def _embed(self, tokens: Tensor) -> Tensor:
        assert self._shared is not None, "bind() comes before the first forward"
        return self._shared.embed(tokens).to(self._state.dtype)


def _given(taps: Tensor | None, of: str) -> Tensor:
    if taps is None:
        raise ValueError(f"a head needs the target's states of {of}")
    return taps


@dataclass(frozen=True, eq=False)
class SharedLayers:
    """The functions that a head calls besides its own layers."""

    embed: Callable[[Tensor], Tensor]  # tokens [...] -> [..., E]
    head: Callable[[Tensor], Tensor]  # normed states [..., H] -> logits [..., V] float32

    @classmethod
    def of(cls, target: Model, embedding: Tensor | None) -> SharedLayers:
        """Of a target; `embedding [V, E]` is the head's own, where it has one. Raises LoadError for a target
        that does not share its layers."""
        embed, head = getattr(target, "embed", None), getattr(target, "head", None)
        if embed is None or head is None:
            raise LoadError(
                f"{type(target).__name__} does not share its embeddings and output layer, which a head "
                "needs: take an ordinary draft model"
            )
        if embedding is None:
            return cls(embed, head)
        return cls(lambda tokens: lookup(tokens, embedding), head)


@dataclass(frozen=True, eq=False)
class Scorer:
    """Logits of a head's states. Row i of them is token `ids[i]`, or token i where the output layer is the
    target's."""

    output: Output
    head: Callable[[Tensor], Tensor]  # the target's output layer
    vocab: int  # the target's number of tokens

    @property
    def ids(self) -> Tensor | None:
        """The tokens of `rows`; None where row i is token i."""
        return self.output.ids if self.output.head is not None else None

    def rows(self, states: Tensor) -> Tensor:
        """Logits `[B, N, U]` float32 of the output layer's rows."""
        normed, own = self.output.normed(states), self.output.head
        return self.head(normed) if own is None else own(normed).float()

    def whole(self, rows: Tensor) -> Tensor:
        """The same in all tokens of the target `[B, N, V]`: -inf for those that the head does not propose."""
        if self.ids is None:
            return rows
        made = rows.new_full((*rows.shape[:-1], self.vocab), float("-inf"))
        return made.index_copy_(-1, self.ids, rows)
