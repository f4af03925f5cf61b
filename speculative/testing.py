"""Importable fakes for tests: a tiny model, a drafter with known outcomes, and a reference decoder.

Nothing here needs weights or transformers. `TinyModel` scores depend on every slot a query can see, and slots
that were never written hold poison, so a cache or mask that is off by one changes the text. `decode` is the
reference: one sequence at a time, no cache, no batch, no draft. Tests compare the engine with it for every
drafter; the two share only the logits processors and, above temperature 0, the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from .protocols import Drafter, Processor
from .requests import Mode, Request
from .rounds.sampling import penalise, perturbed
from .rows import Rows
from .types import Draft, Paths, Prefilled, Prefix, Scores

POISON = 1e3

Forward = Callable[[Tensor], Tensor]
"""Token ids `[L]` -> logits `[L, V]` of the whole prefix."""


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

    def renumbered(self, ids: Sequence[int], listed: Sequence[int] | None = None) -> TinyModel:
        """The same model with other ids: its token i is this one's token `ids[i]`; some may be left out, or
        occur twice. `listed` are the only tokens that it has, in its own ids."""
        made = copy(self)
        made.vocab_size, chosen = len(ids), torch.tensor(ids)
        made.embedding, made.head = self.embedding[chosen], self.head[:, chosen]
        made.listed = None if listed is None else torch.tensor(listed)
        return made

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


class ScriptedDrafter(Drafter):
    """Proposes the tokens of a script: `scripts[tag]` is the row's whole text, or a wrong guess of it.

    With the true continuation in the script every draft is accepted; tests force any acceptance
    pattern by changing tokens of it.
    """

    def __init__(self, scripts: dict[Any, Sequence[int]], fill: int = 0) -> None:
        self.scripts, self.fill = scripts, fill
        self.script = torch.empty(0)

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        self.script = torch.full((batch, 2 * slots), self.fill, dtype=torch.int64, device=device)

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        for row, request in zip(rows.tolist(), requests, strict=True):
            text = [*request.prompt, *self.scripts[request.tag]]
            self.script[row] = self.fill
            self.script[row, : len(text)] = torch.tensor(text)

    def propose(self, rows: Rows, gamma: int) -> Draft:
        index = rows.lengths[:, None] + torch.arange(gamma, device=rows.lengths.device)
        return Draft(self.script.gather(1, index), torch.full_like(rows.lengths, gamma))


@torch.inference_mode()
def decode(
    forward: Forward,
    request: Request,
    *,
    eos: Iterable[int],
    max_tokens: int,
    processors: Iterable[Processor] = (),
) -> tuple[int, ...]:
    """Tokens generated after `request.prompt`, end-of-text included where it comes."""
    ends, tokens = set(eos), list(request.prompt)
    begin, limit = len(tokens), max_tokens
    if request.max_new_tokens is not None:
        limit = min(limit, begin + request.max_new_tokens)
    row = Rows.empty(1, limit, torch.device("cpu"))
    row.mode = Mode.of([request])
    row.sample_as([request])
    while len(tokens) < limit:
        prefix = torch.tensor(tokens)
        logits = forward(prefix)[-1][None, None].float()  # [1, 1, V]
        view = Prefix(prefix[None], torch.tensor([[len(tokens) - 1]]), torch.tensor([begin]))
        for processor in processors:
            logits = processor(logits, view)
        if row.mode.penalised:
            logits = penalise(row, logits, view)
        drawn = perturbed(row, logits, torch.tensor([[len(tokens)]]))
        tokens.append(int(drawn[0, 0].argmax()))
        if tokens[-1] in ends:
            break
    return tuple(tokens[begin:])
