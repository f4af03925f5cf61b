"""A draft of another vocabulary under its target's token ids.

A `MappedVocabulary` is a `Model` of the target's vocabulary around a model of another one: ids are translated
on their way in, logits and drafted ids on their way out, by lookups of fixed shape. A `TokenMap` says which
token stands for which; what has no partner has the logit -inf and is never drafted. Knows ids, an adapter
and the letters in which tokenizers write bytes; nothing of texts or families of models.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from ..protocols import BeamModel, GreedyModel
from ..rounds.choice import Allowed, Choice
from ..types import Paths, Prefilled, Scores, States
from .slot_model import SlotModel, score_at

NONE = -1
"""In place of a target id: the draft's token has no partner."""

_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
_OTHERS = sorted({*range(256)} - {*_PRINTABLE})

LETTERS: Mapping[int, str] = {
    **{byte: chr(byte) for byte in _PRINTABLE},
    **{byte: chr(256 + index) for index, byte in enumerate(_OTHERS)},
}
"""GPT-2's printable character for each byte."""

BYTES: Mapping[str, int] = {letter: byte for byte, letter in LETTERS.items()}
"""The byte of each of those characters."""

Head = Sequence[int] | None
"""The only tokens, in the draft's ids, that its head has; None: all."""


def mapped(
    build: Callable[[Head], SlotModel], token_map: TokenMap, listed: Head = None
) -> MappedVocabulary:
    """A draft under its target's ids: `build` makes the adapter of the draft with a head of these tokens.
    `listed` are the only ones, in the draft's ids, that it proposes."""
    inner = build(token_map.proposed(listed))
    kind = MappedGreedyVocabulary if hasattr(inner, "draft_greedy") else MappedVocabulary
    return kind(inner, token_map)


class MappedVocabulary:
    """`inner`, a draft with W tokens, as a `NodeModel` with the V tokens of its target.

    Head rows of tokens without a partner are never computed: `inner` was made with a `listed` of
    `TokenMap.proposed`. Each forward costs one lookup of its tokens and one pass over its logits more than
    `inner` alone.
    """

    def __init__(self, inner: SlotModel, token_map: TokenMap) -> None:
        assert inner.vocab_size == len(token_map.to_target)
        heads = range(inner.vocab_size) if inner.listed is None else inner.listed.tolist()
        self.inner, self.token_map = inner, token_map
        self.vocab_size, self.max_positions = len(token_map.to_draft), inner.max_positions
        self._to_draft = torch.tensor(token_map.to_draft, device=inner.device)
        self._to_target = torch.tensor(token_map.to_target, device=inner.device)
        known = frozenset(token_map.to_target[draft] for draft in heads)
        absent = [target not in known for target in range(self.vocab_size)]
        self._absent = torch.tensor(absent, device=inner.device)  # [V]
        self.listed: Tensor | None = None
        """The only tokens with finite logits, ascending; None: all."""
        if any(absent):
            self.listed = torch.tensor(sorted(known), device=inner.device)

    def tap(self, layers: tuple[int, ...]) -> None:
        self.inner.tap(layers)

    def allocate(self, batch: int, slots: int) -> None:
        self.inner.allocate(batch, slots)

    def prefill(
        self, rows: Tensor, tokens: Tensor, encoder_states: States, nodes: Tensor | None = None
    ) -> Prefilled:
        """See `Model.prefill`; without `nodes` there are no logits, which nobody reads of a draft."""
        read = self.inner.prefill(rows, self._to_draft[tokens], encoder_states, nodes)
        logits = read.logits[:, :0] if nodes is None else read.logits
        return Prefilled(self._written(logits), read.taps)

    def score(self, tokens: Tensor, start: Tensor, *, reach: int) -> Scores:
        read = self.inner.score(self._to_draft[tokens], start, reach=reach)
        return Scores(self._written(read.logits), read.taps)

    def score_at(self, tokens: Tensor, start: Tensor, node: Tensor, *, reach: int) -> Tensor:
        return self._written(score_at(self.inner, self._to_draft[tokens], start, node, reach))

    def score_paths(self, tokens: Tensor, paths: Paths, *, reach: int) -> Tensor:
        read = cast(BeamModel, self.inner).score_paths(self._to_draft[tokens], paths, reach=reach)
        return self._written(read)

    def _written(self, logits: Tensor) -> Tensor:
        """Logits `[..., W]` as those of the target's tokens `[..., V]`."""
        found = logits.index_select(-1, self._to_draft)
        return found.masked_fill_(self._absent, float("-inf"))


class MappedGreedyVocabulary(MappedVocabulary):
    """The same for a model with passes of its own for greedy rounds, which stay in its own ids."""

    def draft_greedy(self, tokens: Tensor, *where: Any, **bounds: Any) -> Tensor:
        inner = cast(GreedyModel, self.inner)
        return self._to_target[inner.draft_greedy(self._to_draft[tokens], *where, **bounds)]

    def choose(self, logits: Tensor, allowed: Allowed | None = None) -> Choice:
        return cast(GreedyModel, self.inner).choose(logits, allowed)


@dataclass(frozen=True)
class TokenMap:
    """The ids of a target with V tokens and of a draft with W.

    `to_draft [V]` says how the draft reads each target token: every one can be read, if only as a token that
    stands in for it. `to_target [W]` says which target token a drafted one proposes, `NONE` where the target
    has no such token: it is never drafted. Partners are pairs: `to_draft[to_target[d]] == d`.
    """

    to_draft: tuple[int, ...]
    to_target: tuple[int, ...]

    def __post_init__(self) -> None:
        assert all(self.to_draft[self.to_target[draft]] == draft for draft in self.partners)

    @cached_property
    def partners(self) -> tuple[int, ...]:
        """The draft's tokens that have a partner, ascending: all that it may propose."""
        return tuple(d for d, target in enumerate(self.to_target) if target != NONE)

    def proposed(self, listed: Collection[int] | None) -> tuple[int, ...] | None:
        """The draft's tokens that its head needs, ascending: those of `listed` (None: all) with a partner;
        None where these are all of its tokens."""
        if listed is None:
            return None if len(self.partners) == len(self.to_target) else self.partners
        known = frozenset(listed)
        return tuple(draft for draft in self.partners if draft in known)
