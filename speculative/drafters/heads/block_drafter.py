"""Drafts of a DFlash head: a block in one pass, whatever its length.

The target's states of committed tokens are projected into the head's keys and values; the queries are the
pending token and masks, which read the committed tokens and each other. Knows rows, taps and a head; nothing
of targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...drafts import Distribution, Draft, Scores, Verdict
from ...models.cache import SlotCache
from ...models.heads.head_record import BlockHead
from ...protocols import Model, Needs
from ...requests import Request
from ...rows import Rows
from .picking import Picker, Scorer
from .sharing import SharedLayers


class BlockDrafter:
    """Drafts with a block head. A draft has at most `block - 1` tokens, and the pass is of a whole block, as
    in training: its masks read each other.

    The distribution of a position does not depend on the drafts before it, which is one like any other for
    the acceptance rules. `confidence` ends greedy drafts early, as in `ModelDrafter`; it saves positions of
    the target, not of the head. Raises ValueError for a confidence outside 0 to 1, and LoadError, when it is
    bound, for a target that shares nothing.
    """

    def __init__(self, head: BlockHead, *, confidence: float = 0.0) -> None:
        if not 0 <= confidence <= 1:
            raise ValueError(f"confidence is {confidence}; it must be from 0 to 1")
        self.record, self.confidence = head, confidence
        self._shared: SharedLayers | None = None
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
        self._shared = SharedLayers.of(target, self.record.embedding)
        self._scorer = Scorer(self.record.output, self._shared.head, target.vocab_size)

    def distribution(self, *, sampling: bool) -> Distribution:
        return Distribution.DENSE if sampling else Distribution.ONE_HOT

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        self._cache = SlotCache(
            batch=batch,
            slots=slots + self.record.block,  # a block may begin at the last slot
            layers=self.record.body.shapes,
            dtype=self.record.output.norm.dtype,
            device=device,
        )
        self._masks = torch.full((batch, self.record.block - 1), self.record.mask_token)
        self._masks = self._masks.to(device)

    def forwards(self, gamma: int) -> int:
        return 1

    @torch.inference_mode()
    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        if taps is None:
            raise ValueError("a head needs the target's states of prompts")
        slots = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        self._project(taps, slots, self._allocated().prefill(rows))

    def catch_up(self, rows: Rows, start: Tensor, count: int) -> None:
        """Does nothing: every round is observed, as states cannot be caught up from tokens."""

    def propose(self, rows: Rows, gamma: int) -> Draft:
        cache, head = self._allocated(), self.record
        assert self._shared is not None, "bind() comes before the first forward"
        tokens = torch.cat([rows.pending(), self._masks[: rows.batch]], 1)  # [B, block]
        start, reach = rows.lengths - 1, rows.reach + head.block
        slots = start[:, None] + torch.arange(head.block, device=tokens.device)
        # All positions of the block read each other and what is committed before it.
        reads = torch.arange(reach, device=tokens.device) < (start + head.block)[:, None]
        dtype = head.output.norm.dtype
        zero = torch.zeros((), dtype=dtype, device=tokens.device)
        mask = torch.where(reads, zero, torch.finfo(dtype).min)[:, None, None]
        mask = mask.expand(-1, -1, head.block, -1)
        embedded = self._shared.embed(tokens).to(dtype)
        states = head.body(embedded, embedded, slots, mask, cache.decode(slots, reach))
        picker, most = Picker(self._scorer, rows), min(gamma, head.block - 1)
        ends = bool(self.confidence) and not rows.mode.sampling
        for depth in range(most):
            picker.pick(states[:, depth + 1 : depth + 2], believe=ends)
            if ends and not bool((rows.active & (picker.belief >= self.confidence)).any()):
                break
        return picker.draft(torch.full_like(rows.lengths, most))

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Keys of tokens that were not accepted are written over by the next block."""
        if scores.taps is None:
            raise ValueError("a head needs the target's states of every round")
        count = scores.taps.shape[1]
        slots = (rows.lengths - 1)[:, None] + torch.arange(count, device=rows.lengths.device)
        self._project(scores.taps, slots, self._allocated().decode(slots, rows.reach))

    def _project(self, taps: Tensor, positions: Tensor, cache: Any) -> None:
        """Writes the keys and values of taps `[B, N, n, D]` at `positions [B, N]`."""
        head = self.record
        feature = head.taps.feature(taps.to(head.output.norm.dtype))
        angles = head.body.angles(positions, feature.dtype)
        for index, layer in enumerate(head.body.layers):
            cache.update(*head.body.keys_values(layer, feature, angles), index)

    def _allocated(self) -> SlotCache:
        if self._cache is None:
            raise RuntimeError("allocate() comes before the first forward")
        return self._cache
