"""Drafts of heads on a target's hidden states: chains of tokens, and blocks in one pass.

A head reads the target's states of committed tokens (taps), shares its embeddings and output layer, and keeps
keys and values of its own. Those of rejected drafts are written over before they are read.

    ChainDrafter         EAGLE-3 and MTP layers (Li et al. 2025, 2503.01840, section 3): one token after
                         another. After each verdict one pass reads the committed tokens with the target's
                         true states, over what the draft steps wrote from the head's own
    BlockDrafter         DFlash (2602.06036): the pending token and masks, which read the committed tokens
                         and each other
    WhisperBlockDrafter  the same for Whisper, which also reads the encoder states of its request

Knows rows, taps and records of heads; nothing of targets' layers, of formats or files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import embedding as lookup

from ..errors import LoadError
from ..models.heads.records import BlockHead, ChainHead, Head, Output, Run
from ..models.heads.whisper_block import WhisperBlock
from ..models.slot_model import LayerShape, additive, at_node, chain_mask
from ..protocols import Model, Needs
from ..requests import Request
from ..rounds.choice import argmax
from ..rows import Rows
from ..types import Distribution, Draft, Scores, Verdict
from .model_drafter import Picker

if TYPE_CHECKING:
    from ..models.module_cache import SlotCache


def drafter_of(head: Head, *, confidence: float = 0.0) -> ChainDrafter | BlockDrafter:
    """The drafter of a chain head or a block head; see `HeadDrafter` for `confidence`."""
    if isinstance(head, BlockHead):
        return BlockDrafter(head, confidence=confidence)
    return ChainDrafter(head, confidence=confidence)


class HeadDrafter:
    """What the drafters of all heads share.

    `confidence` ends greedy drafts early, as in `ModelDrafter`. Raises ValueError for a confidence outside 0
    to 1, and LoadError, when it is bound, for a target that does not share its embeddings and output layer.
    """

    def __init__(
        self,
        taps: tuple[int, ...],
        confidence: float,
        *,
        output: Output | None = None,
        embedding: Tensor | None = None,
        vocab: int | None = None,
    ) -> None:
        """`output` is the head's record of what follows its layers, where it has one; `embedding [V, E]` its
        own embeddings; `vocab` the only number of tokens that it fits."""
        if not 0 <= confidence <= 1:
            raise ValueError(f"confidence is {confidence}; it must be from 0 to 1")
        self.confidence = confidence
        self._taps, self._output, self._embedding, self._vocab = taps, output, embedding, vocab
        self._shared: SharedLayers | None = None
        self._scorer: Scorer | None = None
        self._cache: SlotCache | None = None

    @property
    def needs(self) -> Needs:
        return Needs(
            taps=self._taps,
            prompt=True,
            always=True,
            vocab=self._vocab,
            ends_early=self.confidence > 0,
        )

    def bind(self, target: Model) -> None:
        self._shared = shared = SharedLayers.of(target, self._embedding)
        if self._output is not None:
            self._scorer = Scorer(self._output, shared.head, target.vocab_size)

    def distribution(self, *, sampling: bool) -> Distribution:
        return Distribution.DENSE if sampling else Distribution.ONE_HOT

    def catch_up(self, rows: Rows, start: Tensor, count: int) -> None:
        """Does nothing: every round is observed, as states cannot be caught up from tokens."""

    def _pick(self, picker: Picker, states: Tensor) -> Tensor:
        """The next draft `[B]`, of states `[B, 1, H]`, or without an `output` of logits of all tokens."""
        if self._scorer is None:
            return picker.pick(states)
        logits = self._scorer.rows(states)
        if picker.reads_all:
            return picker.pick(self._scorer.whole(logits))
        return picker.pick(logits, self._scorer.ids)

    def _layers(self) -> SharedLayers:
        assert self._shared is not None, "bind() comes before the first forward"
        return self._shared

    def _allocated(self) -> SlotCache:
        if self._cache is None:
            raise RuntimeError("allocate() comes before the first forward")
        return self._cache


class ChainDrafter(HeadDrafter):
    """Drafts with a chain head, of any target whose embeddings and output layer can be shared.

    Position t of the head pairs the target's state at slot t with the token at slot t + 1, so that a row of
    L tokens has L - 1 positions, and one of a single token is decoded plainly for a round. The last committed
    position gives the first draft of the next round.
    """

    def __init__(self, head: ChainHead, *, confidence: float = 0.0) -> None:
        super().__init__(head.taps.layers, confidence, output=head.output, embedding=head.embedding)
        self.record = head
        self._state = torch.empty(0)  # [B, H] of each row's last position

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        weight = self.record.output.norm
        self._cache = _cache(batch, slots, self.record.body.shapes, weight.dtype, device)
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
        return self._layers().embed(tokens).to(self._state.dtype)


class _BlockDrafter(HeadDrafter, ABC):
    """What the drafters of blocks share. The distribution of a position does not depend on the drafts before
    it, which is one like any other for the acceptance rules. `confidence` saves positions of the target, not
    of the head."""

    def forwards(self, gamma: int) -> int:
        return 1

    @torch.inference_mode()
    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        slots = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        self._write(_given(taps, "prompts"), slots, self._allocated().prefill(rows))

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Keys of tokens that were not accepted are written over before they are read."""
        taps = _given(scores.taps, "every round")
        count = torch.arange(taps.shape[1], device=rows.lengths.device)
        slots = (rows.lengths - 1)[:, None] + count
        self._write(taps, slots, self._allocated().decode(slots, rows.reach))

    @abstractmethod
    def _write(self, taps: Tensor, slots: Tensor, cache: Any) -> None:
        """Writes the keys and values of taps `[B, N, n, D]` at `slots [B, N]`, where the view `cache` is."""

    def _drafted(self, rows: Rows, states: Tensor, count: int) -> Draft:
        """Drafts of the first `count` positions of `states [B, N, H]`."""
        picker = Picker(rows, self.confidence)
        for depth in range(count):
            self._pick(picker, states[:, depth : depth + 1])
            if picker.ended:
                break
        return picker.draft(torch.full_like(rows.lengths, count))


class BlockDrafter(_BlockDrafter):
    """Drafts with a block head. A draft has at most `block - 1` tokens, and the pass is of a whole block, as
    in training: its masks read each other."""

    def __init__(self, head: BlockHead, *, confidence: float = 0.0) -> None:
        super().__init__(head.taps.layers, confidence, output=head.output, embedding=head.embedding)
        self.record = head

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        slots += self.record.block  # a block may begin at the last slot
        dtype = self.record.output.norm.dtype
        self._cache = _cache(batch, slots, self.record.body.shapes, dtype, device)
        self._masks = torch.full((batch, self.record.block - 1), self.record.mask_token)
        self._masks = self._masks.to(device)

    def propose(self, rows: Rows, gamma: int) -> Draft:
        cache, head = self._allocated(), self.record
        tokens = torch.cat([rows.pending(), self._masks[: rows.batch]], 1)  # [B, block]
        start, reach = rows.lengths - 1, rows.reach + head.block
        slots = start[:, None] + torch.arange(head.block, device=tokens.device)
        # All positions of the block read each other and what is committed before it.
        reads = torch.arange(reach, device=tokens.device) < (start + head.block)[:, None]
        mask = additive(reads[:, None], head.output.norm.dtype).expand(-1, -1, head.block, -1)
        embedded = self._layers().embed(tokens).to(mask.dtype)
        states = head.body(embedded, embedded, Run(slots, mask, cache.decode(slots, reach)))
        return self._drafted(rows, states[:, 1:], min(gamma, head.block - 1))

    def _write(self, taps: Tensor, slots: Tensor, cache: Any) -> None:
        head = self.record
        feature = head.taps.feature(taps.to(head.output.norm.dtype))
        angles = head.body.angles(slots, feature.dtype)
        for index, layer in enumerate(head.body.layers):
            cache.update(*head.body.keys_values(layer, feature, angles), index)


class WhisperBlockDrafter(_BlockDrafter):
    """Drafts with a Whisper block head: at most `block` tokens, in one pass of as many queries.

    `pick` selects the target's encoder states `[S, D]` from those of a request; `sources` is S. Their keys
    and values are made once, when a request is admitted. The head runs in its own number format, the shared
    embeddings and output layer in the target's.
    """

    def __init__(
        self,
        head: WhisperBlock,
        pick: Callable[[Any], Tensor] = lambda encoder_states: encoder_states,
        *,
        sources: int,
        confidence: float = 0.0,
    ) -> None:
        super().__init__(head.shape.taps, confidence, vocab=head.shape.vocab)
        self.head, self.pick, self.sources = head, pick, sources

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        shape = self.head.shape
        self.head = self.head.to(device, self.head.dtype)
        size = shape.width // shape.heads
        slots += shape.block  # what is observed of a last round may run beyond its end
        layers = [LayerShape(shape.heads, size, size)] * shape.layers
        self._cache = _cache(batch, slots, layers, self.head.dtype, device, self.sources)

    @torch.inference_mode()
    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        super().admit(rows, tokens, requests, taps)
        states = torch.stack([self.pick(r.encoder_states) for r in requests]).to(rows.device)
        cross = self._allocated().cross
        assert cross is not None
        for layer, buffers in enumerate(cross):
            for buffer, made in zip(buffers, self.head.cross(layer, states), strict=True):
                buffer[rows] = made

    def propose(self, rows: Rows, gamma: int) -> Draft:
        shared, count = self._layers(), min(gamma, self.head.shape.block)
        embedded = shared.embed(rows.pending())  # [B, 1, D]
        states = self._states(rows, embedded, count).to(embedded.dtype)
        logits = shared.head(states)  # [B, G, V]
        if rows.mode.sampling or rows.mode.penalised or self.confidence:
            return self._drafted(rows, logits, count)
        return Draft(argmax(logits), torch.full_like(rows.lengths, count))

    def _write(self, taps: Tensor, slots: Tensor, cache: Any) -> None:
        for layer in range(self.head.shape.layers):
            cache.self_attention_cache.update(*self.head.context(layer, taps), layer)

    def _states(self, rows: Rows, embedded: Tensor, count: int) -> Tensor:
        """What the output layer reads `[B, G, D]`, of a block behind the pending tokens."""
        head, cache, reach = self.head, self._allocated(), rows.reach
        start, device = (rows.lengths - 1)[:, None], rows.lengths.device
        # Queries read what is committed before the pending token, and each other.
        column = torch.arange(reach + count, device=device)
        reads = (column < start) | (column >= reach)
        mask = additive(reads[:, None], head.dtype).expand(-1, -1, count, -1)
        assert cache.cross is not None
        x = head.embed(embedded, start + torch.arange(count, device=device))
        for layer, (own, cross) in enumerate(zip(cache.layers, cache.cross, strict=True)):
            context = own[0][: rows.batch, :, :reach], own[1][: rows.batch, :, :reach]
            x = head.layer(
                layer, x, context, (cross[0][: rows.batch], cross[1][: rows.batch]), mask
            )
        return head.finish(x)


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


def _cache(
    batch: int,
    slots: int,
    layers: Sequence[LayerShape],
    dtype: torch.dtype,
    device: torch.device,
    cross_slots: int | None = None,
) -> SlotCache:
    # It has the interface of transformers' caches, as layers of its models are heads too; importing that
    # takes seconds, and most drafters are not heads.
    from ..models.module_cache import SlotCache

    return SlotCache(
        batch=batch,
        slots=slots,
        layers=layers,
        dtype=dtype,
        device=device,
        cross_slots=cross_slots,
    )
