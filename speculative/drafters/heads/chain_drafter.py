"""Drafts of EAGLE-3 heads and MTP layers, one token after another (Li et al. 2025, 2503.01840, section 3).

After each verdict one pass reads the committed tokens with the target's true states; it writes over what the
draft steps wrote, which came from the head's own states. The last committed position gives the first draft of
the next round. Knows rows, taps and a head; nothing of targets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...drafts import Distribution, Draft, Scores, Verdict
from ...models.cache import SlotCache, chain_mask
from ...models.heads.head_record import ChainHead, Run
from ...protocols import Model, Needs
from ...requests import Request
from ...rows import Rows
from .picking import Picker, Scorer
from .sharing import SharedLayers


class ChainDrafter:
    """Drafts with a chain head, of any target whose embeddings and output layer can be shared.

    Position t of the head pairs the target's state at slot t with the token at slot t + 1, so that a row of
    L tokens has L - 1 positions, and one of a single token is decoded plainly for a round.

    `confidence` ends greedy drafts early, as in `ModelDrafter`. Raises ValueError for a confidence outside 0
    to 1, and LoadError, when it is bound, for a target that shares nothing.
    """

    def __init__(self, head: ChainHead, *, confidence: float = 0.0) -> None:
        if not 0 <= confidence <= 1:
            raise ValueError(f"confidence is {confidence}; it must be from 0 to 1")
        self.record, self.confidence = head, confidence
        self._shared: SharedLayers | None = None
        self._cache: SlotCache | None = None
        self._state: Tensor | None = None  # [B, H] of each row's last position

    @property
    def needs(self) -> Needs:
        return Needs(
            taps=self.record.taps.layers,
            prompt=True,
            always=True,
            ends_early=self.confidence > 0,
        )

    def bind(self, target: Model) -> None:
        self._shared = SharedLayers.of(target, self.record.embedding)
        self._scorer = Scorer(self.record.output, self._shared.head, target.vocab_size)

    def distribution(self, *, sampling: bool) -> Distribution:
        return Distribution.DENSE if sampling else Distribution.ONE_HOT

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        weight = self.record.output.norm
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
        cache, state = self._allocated()
        lengths = torch.tensor([len(r.prompt) for r in requests], device=tokens.device)
        if taps is None:
            raise ValueError("a head needs the target's states of prompts")
        # The last position has no token after it yet; its keys are written over by the first round.
        after = tokens.roll(-1, 1)
        slots = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        mask = chain_mask(slots, tokens.shape[1], state.dtype)
        feature = self.record.taps.feature(taps.to(state.dtype))
        run = Run(slots, mask, cache.prefill(rows))
        states = self.record.step(self._embed(after), feature, run)
        state[rows] = _at(states, (lengths - 2).clamp_min(0))[:, 0]

    def catch_up(self, rows: Rows, start: Tensor, count: int) -> None:
        """Does nothing: every round is observed, as states cannot be caught up from tokens."""

    def propose(self, rows: Rows, gamma: int) -> Draft:
        _, state = self._allocated()
        states = state[: rows.batch, None]  # [B, 1, H]
        picker, lengths = Picker(self._scorer, rows), rows.lengths
        ends = bool(self.confidence) and not rows.mode.sampling
        for depth in range(gamma):
            token = picker.pick(states, believe=ends)
            if ends and not bool((rows.active & (picker.belief >= self.confidence)).any()):
                break
            if depth + 1 < gamma:
                feature = self.record.next_feature(states)
                states = self._read(token[:, None], feature, lengths - 1 + depth, rows.reach)
        return picker.draft(torch.where(lengths > 1, gamma, 0))

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        _, state = self._allocated()
        if scores.taps is None:
            raise ValueError("a head needs the target's states of every round")
        feature = self.record.taps.feature(scores.taps.to(state.dtype))
        states = self._read(verdict.tokens, feature, rows.lengths - 1, rows.reach)
        # Where a row takes no part, nothing is committed, and what was written is written again.
        last = _at(states, verdict.num_accepted)[:, 0]
        state[: rows.batch] = torch.where(rows.active[:, None], last, state[: rows.batch])

    def _read(self, tokens: Tensor, feature: Tensor, start: Tensor, reach: int) -> Tensor:
        """States `[B, N, H]` of the positions from slot `start [B]` on, whose next tokens are these."""
        cache, state = self._allocated()
        slots = start[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        run = Run(slots, chain_mask(slots, reach, state.dtype), cache.decode(slots, reach))
        return self.record.step(self._embed(tokens), feature, run)

    def _embed(self, tokens: Tensor) -> Tensor:
        assert self._shared is not None, "bind() comes before the first forward"
        return self._shared.embed(tokens).to(self._allocated()[1].dtype)

    def _allocated(self) -> tuple[SlotCache, Tensor]:
        if self._cache is None or self._state is None:
            raise RuntimeError("allocate() comes before the first forward")
        return self._cache, self._state


def _at(states: Tensor, index: Tensor) -> Tensor:
    """`[B, 1, H]`: the states at `index [B]` of `[B, N, H]`."""
    return states.gather(1, index[:, None, None].expand(-1, 1, states.shape[2]))
