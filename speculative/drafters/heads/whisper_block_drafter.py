"""Drafts of a Whisper block head: a block in one pass, whatever its length.

The head's keys and values of committed tokens are made of the target's tapped states as rounds go; those of
the encoder states once, when a request is admitted. Knows rows, taps and a head; nothing of targets' layers
or files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...drafts import Distribution, Draft, Scores, Verdict
from ...models.cache import LayerShape, SlotCache
from ...models.heads.whisper_block import WhisperBlock
from ...protocols import Model, Needs
from ...requests import Request
from ...rounds.choice import argmax
from ...rows import Rows
from .picking import Given, Picker
from .sharing import SharedLayers


class WhisperBlockDrafter:
    """Drafts with a Whisper block head: at most `block` tokens, in one pass of as many queries.

    `pick` selects the target's encoder states `[S, D]` from those of a request; `sources` is S. The head
    runs in its own number format, the shared embeddings and output layer in the target's. As in
    `BlockDrafter`, the distribution of a position does not depend on the drafts before it. `confidence` ends
    greedy drafts early, as in `ModelDrafter`; it saves positions of the target, not of the head.

    Raises ValueError for a confidence outside 0 to 1, and LoadError, when it is bound, for a target that
    shares nothing.
    """

    def __init__(
        self,
        head: WhisperBlock,
        pick: Callable[[Any], Tensor] = lambda encoder_states: encoder_states,
        *,
        sources: int,
        confidence: float = 0.0,
    ) -> None:
        if not 0 <= confidence <= 1:
            raise ValueError(f"confidence is {confidence}; it must be from 0 to 1")
        self.head, self.pick, self.sources, self.confidence = head, pick, sources, confidence
        self._shared: SharedLayers | None = None
        self._cache: SlotCache | None = None

    @property
    def needs(self) -> Needs:
        shape = self.head.shape
        return Needs(
            taps=shape.taps,
            prompt=True,
            always=True,
            vocab=shape.vocab,
            ends_early=self.confidence > 0,
        )

    def bind(self, target: Model) -> None:
        self._shared = SharedLayers.of(target, None)

    def distribution(self, *, sampling: bool) -> Distribution:
        return Distribution.DENSE if sampling else Distribution.ONE_HOT

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        shape = self.head.shape
        self.head = self.head.to(device, self.head.dtype)
        size = shape.width // shape.heads
        self._cache = SlotCache(
            batch=batch,
            slots=slots + shape.block,  # what is observed of a last round may run beyond its end
            layers=[LayerShape(shape.heads, size, size)] * shape.layers,
            dtype=self.head.dtype,
            device=device,
            cross_slots=self.sources,
        )

    def forwards(self, gamma: int) -> int:
        return 1

    @torch.inference_mode()
    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        if taps is None:
            raise ValueError("a block head needs the target's states of prompts")
        cache = self._allocated()
        self._note(taps, cache.prefill(rows))
        states = torch.stack([self.pick(r.encoder_states) for r in requests]).to(rows.device)
        assert cache.cross is not None
        for layer, buffers in enumerate(cache.cross):
            for buffer, made in zip(buffers, self.head.cross(layer, states), strict=True):
                buffer[rows] = made

    def catch_up(self, rows: Rows, start: Tensor, count: int) -> None:
        """Does nothing: every round is observed, as states cannot be caught up from tokens."""

    def propose(self, rows: Rows, gamma: int) -> Draft:
        shared, count = self._shared, min(gamma, self.head.shape.block)
        assert shared is not None, "bind() comes before the first forward"
        embedded = shared.embed(rows.pending())  # [B, 1, D]
        states = self._states(rows, embedded, count).to(embedded.dtype)
        logits = shared.head(states)  # [B, G, V]
        plain = not (rows.mode.sampling or rows.mode.penalised)
        if plain and not self.confidence:
            return Draft(argmax(logits), torch.full_like(rows.lengths, count))
        picker = Picker(Given(), rows)
        ends = bool(self.confidence) and not rows.mode.sampling
        for depth in range(count):
            picker.pick(logits[:, depth : depth + 1], believe=ends)
            if ends and not bool((rows.active & (picker.belief >= self.confidence)).any()):
                break
        return picker.draft(torch.full_like(rows.lengths, count))

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Keys of tokens that were not accepted are written over before they are read."""
        if scores.taps is None:
            raise ValueError("a block head needs the target's states of every round")
        count = torch.arange(scores.taps.shape[1], device=rows.lengths.device)
        slots = (rows.lengths - 1)[:, None] + count
        self._note(scores.taps, self._allocated().decode(slots, rows.reach))

    def _note(self, taps: Tensor, cache: Any) -> None:
        """Writes the keys and values of taps `[B, N, n, D]` where the view of the cache is."""
        for layer in range(self.head.shape.layers):
            cache.self_attention_cache.update(*self.head.context(layer, taps), layer)

    def _states(self, rows: Rows, embedded: Tensor, count: int) -> Tensor:
        """What the output layer reads `[B, G, D]`, of a block behind the pending tokens."""
        head, cache, reach = self.head, self._allocated(), rows.reach
        device = rows.lengths.device
        slots = (rows.lengths - 1)[:, None] + torch.arange(count, device=device)
        # Queries read what is committed before the pending token, and each other.
        column = torch.arange(reach + count, device=device)
        reads = (column < (rows.lengths - 1)[:, None]) | (column >= reach)
        zero = torch.zeros((), dtype=head.dtype, device=device)
        mask = torch.where(reads, zero, torch.finfo(head.dtype).min)[:, None, None]
        mask = mask.expand(-1, -1, count, -1)
        assert cache.cross is not None
        x = head.embed(embedded, slots)
        for layer, (own, cross) in enumerate(zip(cache.layers, cache.cross, strict=True)):
            context = own[0][: rows.batch, :, :reach], own[1][: rows.batch, :, :reach]
            x = head.layer(
                layer, x, context, (cross[0][: rows.batch], cross[1][: rows.batch]), mask
            )
        return head.finish(x)

    def _allocated(self) -> SlotCache:
        if self._cache is None:
            raise RuntimeError("allocate() comes before the first forward")
        return self._cache
