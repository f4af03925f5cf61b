"""Drafts of heads on a target's hidden states: EAGLE-3 and MTP layers.

A head reads the target's states of committed tokens (taps), shares its embeddings and output layer, and keeps
keys and values of its own. It drafts one token after another (Li et al. 2025, 2503.01840, section 3). After
each verdict one pass reads the committed tokens with the target's true states, over what the draft steps
wrote from the head's own; what rejected drafts have left is written over before it is read.

Knows rows, taps and records of heads; nothing of targets' layers, of formats or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import embedding as lookup

from ..errors import LoadError
from ..models.heads.records import Head, Run
from ..models.slot_model import at_node, chain_mask
from ..protocols import Drafter, Model, Needs
from ..requests import Request
from ..rows import Rows
from ..types import Draft, Scores, Verdict
from .model_drafter import Picker

if TYPE_CHECKING:
    from ..models.modules import SlotCache


class HeadDrafter(Drafter):
    """Drafts with a head, of any target whose embeddings and output layer can be shared.

    Position t of the head pairs the target's state at slot t with the token at slot t + 1, so that a row of
    L tokens has L - 1 positions, and one of a single token is decoded plainly for a round. The last committed
    position gives the first draft of the next round.

    `confidence` ends greedy drafts early, as in `ModelDrafter`. Raises LoadError, when it is bound, for a
    target that does not share its embeddings and output layer.
    """

    def __init__(self, head: Head, *, confidence: float = 0.0) -> None:
        self.record, self.confidence = head, confidence
        self._state = torch.empty(0)  # [B, H] of each row's last position
        self._target: Any = None
        self._cache: SlotCache | None = None

    @property
    def needs(self) -> Needs:
        return Needs(
            taps=self.record.taps.layers, prompt=True, always=True, ends_early=self.confidence > 0
        )

    def bind(self, target: Model) -> None:
        if not hasattr(target, "embed") or not hasattr(target, "head"):
            raise LoadError(
                f"{type(target).__name__} does not share its embeddings and output layer, which a head "
                "needs: take an ordinary draft model"
            )
        self._target = target

    def _pick(self, picker: Picker, states: Tensor) -> Tensor:
        """The next draft `[B]`, of states `[B, 1, H]`."""
        output = self.record.output
        normed, own = output.normed(states), output.head
        if own is None:
            return picker.pick(self._target.head(normed))
        logits = own(normed).float()  # [B, 1, U]
        if not picker.reads_all:
            return picker.pick(logits, output.ids)
        assert output.ids is not None, "rows of an output layer of its own have tokens"
        whole = logits.new_full((*logits.shape[:-1], self._target.vocab_size), float("-inf"))
        return picker.pick(whole.index_copy_(-1, output.ids, logits))

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
        assert self._cache is not None and taps is not None
        state = self._state
        lengths = torch.tensor([len(r.prompt) for r in requests], device=tokens.device)
        embedded: Tensor | None = None
        if hasattr(self._target, "embedded"):
            states = [request.encoder_states for request in requests]
            embedded = self._target.embedded(tokens, states, self._embed)
        # The last position has no token after it yet; its keys are written over by the first round.
        after = (self._embed(tokens) if embedded is None else embedded).roll(-1, 1)
        slots = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        mask = chain_mask(slots, tokens.shape[1], state.dtype)
        feature = self.record.taps.feature(taps.to(state.dtype))
        run = Run(slots, mask, self._cache.prefill(rows))
        read = self.record.step(after, feature, run)
        state[rows] = at_node(read, (lengths - 2).clamp_min(0))[:, 0]

    def propose(self, rows: Rows, gamma: int) -> Draft:
        states = self._state[: rows.batch, None]  # [B, 1, H]
        picker, lengths = Picker(rows, self.confidence), rows.lengths
        for depth in range(gamma):
            token = self._pick(picker, states)
            if picker.ended:
                break
            if depth + 1 < gamma:
                feature = self.record.output.normed(states) if self.record.feeds_normed else states
                states = self._read(token[:, None], feature, lengths - 1 + depth, rows.reach)
        return picker.draft(torch.where(lengths > 1, gamma, 0))

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        assert scores.taps is not None
        state = self._state
        feature = self.record.taps.feature(scores.taps.to(state.dtype))
        states = self._read(verdict.tokens, feature, rows.lengths - 1, rows.reach)
        # Where a row takes no part, nothing is committed, and what was written is written again.
        last = at_node(states, verdict.num_accepted)[:, 0]
        state[: rows.batch] = torch.where(rows.active[:, None], last, state[: rows.batch])

    def _read(self, tokens: Tensor, feature: Tensor, start: Tensor, reach: int) -> Tensor:
        """States `[B, N, H]` of the positions from slot `start [B]` on, whose next tokens are these."""
        assert self._cache is not None
        slots = start[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        mask = chain_mask(slots, reach, self._state.dtype)
        run = Run(slots, mask, self._cache.decode(slots, reach))
        return self.record.step(self._embed(tokens), feature, run)

    def _embed(self, tokens: Tensor) -> Tensor:
        own = self.record.embedding
        embedded: Tensor = self._target.embed(tokens) if own is None else lookup(tokens, own)
        return embedded.to(self._state.dtype)
