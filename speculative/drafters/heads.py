"""Drafts of EAGLE-3 heads and MTP layers, one token after another (Li et al. 2025, 2503.01840, section 3).

After each verdict one pass reads the committed tokens with the target's true states; it writes over what the
draft steps wrote, which came from the head's own states. The last committed position gives the first draft of
the next round. Knows rows, taps and a head; nothing of targets.

What a head shares with its target: embeddings and output layer.

Knows two methods of a target; nothing of its layers.

From a head's states to drafted tokens: greedy, or drawn from the row's distribution.

Knows rows, an output layer and the target's; nothing of how states are made.

Drafts of a DFlash head: a block in one pass, whatever its length.

The target's states of committed tokens are projected into the head's keys and values; the queries are the
pending token and masks, which read the committed tokens and each other. Knows rows, taps and a head; nothing
of targets.

The drafter that runs a head.

Knows the two kinds of records; nothing of formats.

Drafts of a Whisper block head: a block in one pass, whatever its length.

The head's keys and values of committed tokens are made of the target's tapped states as rounds go; those of
the encoder states once, when a request is admitted. Knows rows, taps and a head; nothing of targets' layers
or files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding as lookup
from torch.nn.functional import linear

from ..errors import LoadError
from ..models.heads.records import BlockHead, ChainHead, Head, Output, Run
from ..models.heads.whisper_block import WhisperBlock
from ..models.module_cache import LayerShape, SlotCache, chain_mask
from ..protocols import Model, Needs
from ..requests import Request
from ..rounds.accept import Stream, distribution, draw, uniform
from ..rounds.choice import argmax
from ..rounds.sampling import penalise
from ..rows import Rows
from ..types import Distribution, Draft, Prefix, Scores, Verdict


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


class Logits(Protocol):
    """Logits of states, as a `Picker` asks for them."""

    def rows(self, states: Tensor) -> Tensor:
        """Logits `[B, N, U]` float32 of the tokens that are proposed."""

    def whole(self, rows: Tensor) -> Tensor:
        """The same in all tokens of the target `[B, N, V]`."""

    def tokens(self, best: Tensor) -> Tensor:
        """The tokens of rows."""


class Given:
    """For a `Picker` that is given logits `[B, N, V]` in place of states."""

    def rows(self, states: Tensor) -> Tensor:
        return states

    def whole(self, rows: Tensor) -> Tensor:
        return rows

    def tokens(self, best: Tensor) -> Tensor:
        return best


class Scorer:
    """Logits of a head's states, in the target's tokens."""

    def __init__(self, output: Output, head: Callable[[Tensor], Tensor], vocab: int) -> None:
        """`head` is the target's output layer; `vocab` its number of tokens."""
        self.output, self._head, self.vocab = output, head, vocab

    @property
    def ids(self) -> Tensor | None:
        """The tokens of `rows`; None where row i is token i."""
        return self.output.ids if self.output.head is not None else None

    def rows(self, states: Tensor) -> Tensor:
        """Logits `[B, N, U]` float32 of the output layer's rows."""
        normed, own = self.output.normed(states), self.output.head
        return self._head(normed) if own is None else linear(normed, own.weight, own.bias).float()

    def whole(self, rows: Tensor) -> Tensor:
        """The same in all tokens of the target `[B, N, V]`: -inf for those that the head does not propose."""
        if self.ids is None:
            return rows
        made = rows.new_full((*rows.shape[:-1], self.vocab), float("-inf"))
        return made.index_copy_(-1, self.ids, rows)

    def tokens(self, best: Tensor) -> Tensor:
        """The tokens of rows."""
        return best if self.ids is None else self.ids[best]


class Picker:
    """Picks the tokens of one draft, one position after another."""

    def __init__(self, scorer: Logits, rows: Rows) -> None:
        self.scorer, self.rows = scorer, rows
        self.belief = torch.ones(rows.batch, device=rows.lengths.device)
        """`[B]`: the chance, by the head itself, that all drafts so far are kept. Greedy rounds only."""
        self._tokens: list[Tensor] = []
        self._probs: list[Tensor] = []
        # Penalties read the drafts, which are not committed: one copy for all of them.
        self._known = rows.tokens.clone() if rows.mode.penalised else rows.tokens

    def pick(self, states: Tensor, *, believe: bool = False) -> Tensor:
        """The next draft `[B]`, of states `[B, 1, H]`; `believe` keeps account of `belief`."""
        rows, mode = self.rows, self.rows.mode
        slot = rows.lengths + len(self._tokens)  # of the token drafted now
        logits = self.scorer.rows(states)
        if mode.penalised or mode.sampling:
            logits = self.scorer.whole(logits)
        if mode.penalised:
            logits = penalise(rows, logits, Prefix(self._known, (slot - 1)[:, None], rows.begin))
        if mode.sampling:
            q = distribution(rows, logits)[:, 0]
            token = draw(q, uniform(rows.sampling.seed, rows.lengths, slot, Stream.DRAFT))
            self._probs.append(q)
        else:
            best = argmax(logits)
            token = best[:, 0] if mode.penalised else self.scorer.tokens(best[:, 0])
            if believe:
                chosen = logits.gather(-1, best[..., None])[:, 0, 0]
                self.belief = self.belief * (chosen - logits[:, 0].logsumexp(-1)).exp()
        if mode.penalised:
            self._known.scatter_(1, slot[:, None], token[:, None])
        self._tokens.append(token)
        return token

    def draft(self, most: Tensor) -> Draft:
        """The draft; of row b the first `most[b]` tokens count."""
        tokens = torch.stack(self._tokens, 1)
        return Draft(
            tokens=tokens,
            valid=most.clamp_max(tokens.shape[1]),
            probs=torch.stack(self._probs, 1) if self._probs else None,
        )


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


def drafter_of(head: Head, *, confidence: float = 0.0) -> ChainDrafter | BlockDrafter:
    """The drafter of a chain head or a block head; see their `confidence`."""
    if isinstance(head, BlockHead):
        return BlockDrafter(head, confidence=confidence)
    return ChainDrafter(head, confidence=confidence)


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
