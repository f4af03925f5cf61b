"""A fake: a tiny model, which needs neither weights nor transformers.

Its scores depend on every slot a query can see, and slots that were never written hold poison, so a cache or
mask that is off by one changes the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from forescribe.speculative.types import Paths, Prefilled, Scores

POISON = 1e3


class TinyModel:
    """A "language model" whose logits mix position-coded embeddings of all tokens it may see.

    `blur` moves its output weights away from those of the same `seed`: 0 gives an identical model,
    larger values a worse draft, and `listed` leaves a draft these tokens only. A request's encoder states
    are an int that changes the text.
    """

    def __init__(
        self,
        *,
        vocab: int = 11,
        width: int = 24,
        positions: int = 48,
        seed: int = 0,
        blur: float = 0.0,
        listed: Sequence[int] | None = None,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.embedding = normal(vocab, width)
        self.phase = normal(positions, width)
        self.head = normal(width, vocab)
        self.head = self.head + blur * normal(width, vocab)
        self.bias = normal(8, width)
        self.vocab_size, self.max_positions = vocab, positions
        self.device = torch.device("cpu")
        self.listed = None if listed is None else torch.tensor(listed)
        self.values = torch.empty(0)
        self.taps: tuple[int, ...] = ()
        self.encoder_states = torch.empty(0)

    def tap(self, layers: tuple[int, ...]) -> None:
        if layers not in ((), (-1,)):
            raise ValueError(f"layers {layers} cannot be tapped: only the final state, -1, can")
        self.taps = layers

    def allocate(self, batch: int, slots: int) -> None:
        self.values = torch.full((batch, slots, self.head.shape[0]), POISON, dtype=torch.float64)
        self.encoder_states = torch.zeros(batch, dtype=torch.int64)

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        at = positions.clamp(0, self.max_positions - 1)
        return self.embedding[tokens] * torch.cos(self.phase[at])

    def _read(self, values: Tensor, sees: Tensor, encoder_states: Tensor) -> Scores:
        """`values [B, T, D]`, `sees [B, N, T]`; the state is squashed so that no token dominates."""
        seen = torch.where(sees[..., None], values[:, None], 0.0).sum(2)  # [B, N, D]
        state = torch.sin(3 * seen + self.bias[encoder_states][:, None])
        logits = (state @ self.head).float()
        if self.listed is not None:
            none = torch.full_like(logits, float("-inf"))
            logits = none.index_copy(-1, self.listed, logits[..., self.listed])
        taps = state.float()[:, :, None] if self.taps else None
        return Scores(logits, taps)

    def forward(self, tokens: Tensor, encoder_states: int = 0) -> Tensor:
        """Logits `[L, V]` of a whole prefix, for the oracle."""
        values = self._embed(tokens, torch.arange(len(tokens)))[None]
        sees = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()[None]
        return self._read(values, sees, torch.tensor([encoder_states])).logits[0]

    def prefill(
        self,
        rows: Tensor,
        tokens: Tensor,
        encoder_states: Sequence[Any],
        nodes: Tensor | None = None,
    ) -> Prefilled:
        length = tokens.shape[1]
        values = self._embed(tokens, torch.arange(length).expand_as(tokens))
        self.values[rows, :length] = values
        self.encoder_states[rows] = torch.tensor([m or 0 for m in encoder_states])
        sees = torch.ones(length, length, dtype=torch.bool).tril().expand(len(rows), -1, -1)
        read = self._read(values, sees, self.encoder_states[rows])
        if nodes is None:
            return Prefilled(read.logits, read.taps)
        index = nodes[..., None].expand(-1, -1, self.vocab_size)
        return Prefilled(read.logits.gather(1, index), read.taps)

    def score(self, tokens: Tensor, start: Tensor, *, reach: int) -> Scores:
        rows, nodes = tokens.shape
        slots = start[:, None] + torch.arange(nodes)
        values = self._embed(tokens, slots)
        self.values.scatter_(1, slots[..., None].expand_as(values), values)
        sees = torch.arange(reach) <= slots[..., None]  # [B, N, reach]
        return self._read(self.values[:rows, :reach], sees, self.encoder_states[:rows])

    def score_paths(self, tokens: Tensor, paths: Paths, *, reach: int) -> Tensor:
        rows, slots, last = len(tokens), paths.slots, paths.lengths - 1
        own = slots.gather(2, last[..., None])
        values = self._embed(tokens, last)
        self.values.scatter_(1, own.expand_as(values), values)
        counted = torch.arange(slots.shape[2]) <= last[..., None]
        sees = torch.zeros((*slots.shape[:2], reach), dtype=torch.bool)
        sees.scatter_(2, torch.where(counted, slots, own), True)
        return self._read(self.values[:rows, :reach], sees, self.encoder_states[:rows]).logits
