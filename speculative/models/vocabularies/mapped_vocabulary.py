"""A draft under its target's token ids.

A `MappedVocabulary` is a `Model` of the target's vocabulary around a model of another one: ids are translated
on their way in, logits and drafted ids on their way out, by lookups of fixed shape. What has no partner has
the logit -inf and is never drafted. Knows a `TokenMap` and an adapter; nothing of families of models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from ...drafts import Prefilled, Scores, Topology
from ...protocols import GreedyModel, Model, NodeModel
from ...rounds.choice import Allowed, Choice
from .token_map import NONE, TokenMap


class HeadedModel(Model, Protocol):
    """A model on a device whose head may have some tokens only: a `SlotModel` is one."""

    device: torch.device
    listed: Tensor | None


class MappedVocabulary:
    """`inner`, a draft with W tokens, as a `NodeModel` with the V tokens of its target.

    Head rows of tokens without a partner are never computed: `inner` was made with a `listed` of
    `TokenMap.proposed`. Raises ValueError for one that could propose more, or has another vocabulary.
    Each forward costs one lookup of its tokens and one pass over its logits more than `inner` alone.
    """

    def __init__(self, inner: HeadedModel, token_map: TokenMap) -> None:
        if inner.vocab_size != len(token_map.to_target):
            raise ValueError(
                f"a model of {inner.vocab_size} tokens, a map of {len(token_map.to_target)}"
            )
        heads = range(inner.vocab_size) if inner.listed is None else inner.listed.tolist()
        if any(token_map.to_target[draft] == NONE for draft in heads):
            raise ValueError("the model's head has tokens without a partner: cut them off")
        self.inner, self.token_map = inner, token_map
        self._to_draft = torch.tensor(token_map.to_draft, device=inner.device)
        self._to_target = torch.tensor(token_map.to_target, device=inner.device)
        known = frozenset(token_map.to_target[draft] for draft in heads)
        absent = [target not in known for target in range(self.vocab_size)]
        self._absent = torch.tensor(absent, device=inner.device)  # [V]
        self.listed: Tensor | None = None
        """The only tokens with finite logits, ascending; None: all."""
        if any(absent):
            self.listed = torch.tensor(sorted(known), device=inner.device)

    @property
    def vocab_size(self) -> int:
        return len(self.token_map.to_draft)

    @property
    def max_positions(self) -> int:
        return self.inner.max_positions

    def tap(self, layers: tuple[int, ...]) -> None:
        self.inner.tap(layers)

    def allocate(self, batch: int, slots: int) -> None:
        self.inner.allocate(batch, slots)

    def prefill(
        self,
        rows: Tensor,
        tokens: Tensor,
        encoder_states: Sequence[Any],
        nodes: Tensor | None = None,
    ) -> Prefilled:
        """See `Model.prefill`; without `nodes` there are no logits, which nobody reads of a draft."""
        read = self.inner.prefill(rows, self._to_draft[tokens], encoder_states, nodes)
        logits = read.logits[:, :0] if nodes is None else read.logits
        return Prefilled(self._written(logits), read.taps)

    def score(
        self, tokens: Tensor, start: Tensor, *, reach: int, topology: Topology | None = None
    ) -> Scores:
        read = self.inner.score(self._to_draft[tokens], start, reach=reach, topology=topology)
        return Scores(self._written(read.logits), read.taps)

    def score_at(self, tokens: Tensor, start: Tensor, node: Tensor, *, reach: int) -> Tensor:
        """See `NodeModel.score_at`; of an `inner` without such a pass, all nodes are computed."""
        read = self._to_draft[tokens]
        if hasattr(self.inner, "score_at"):
            logits = cast(NodeModel, self.inner).score_at(read, start, node, reach=reach)
        else:
            logits = self.inner.score(read, start, reach=reach).logits
            logits = logits.gather(1, node[:, None, None].expand(-1, 1, logits.shape[2]))
        return self._written(logits)

    def commit(self, start: Tensor, path: Tensor) -> None:
        self.inner.commit(start, path)

    def _written(self, logits: Tensor) -> Tensor:
        """Logits `[..., W]` as those of the target's tokens `[..., V]`."""
        found = logits.index_select(-1, self._to_draft)
        return found.masked_fill_(self._absent, float("-inf"))


class MappedGreedyVocabulary(MappedVocabulary):
    """The same for a model with passes of its own for greedy rounds, which stay in its own ids."""

    def draft_greedy(
        self,
        tokens: Tensor,
        start: Tensor,
        node: Tensor,
        active: Tensor,
        *,
        reach: int,
        gamma: int,
        confidence: float,
    ) -> Tensor:
        """See `GreedyModel.draft_greedy`."""
        drafts = cast(GreedyModel, self.inner).draft_greedy(
            self._to_draft[tokens],
            start,
            node,
            active,
            reach=reach,
            gamma=gamma,
            confidence=confidence,
        )
        return self._to_target[drafts]

    def choose(self, logits: Tensor, allowed: Allowed | None = None) -> Choice:
        """See `GreedyModel.choose`."""
        return cast(GreedyModel, self.inner).choose(logits, allowed)


Head = Sequence[int] | None
"""The only tokens, in the draft's ids, that its head has; None: all."""


def mapped(
    build: Callable[[Head], HeadedModel], token_map: TokenMap, listed: Head = None
) -> MappedVocabulary:
    """A draft under its target's ids: `build` makes the adapter of the draft with a head of these tokens.
    `listed` are the only ones, in the draft's ids, that it proposes."""
    inner = build(token_map.proposed(listed))
    kind = MappedGreedyVocabulary if hasattr(inner, "draft_greedy") else MappedVocabulary
    return kind(inner, token_map)
