"""A draft whose output head has the likeliest tokens only.

A two-layer draft of large-v3 spends more than half of its time in the head of 51,866 tokens. A draft is only
a guess, so a head of the frequent ones changes no text: tokens without a row are never proposed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from forescribe.speculative.drafts import Scores, Topology
from forescribe.speculative.protocols import Model


def with_cut_head(model: Any, tokens: Sequence[int]) -> Any:
    """A copy of a transformers model that shares all weights but its head, which has these tokens."""
    made = copy.copy(model)
    made._modules = dict(model._modules)
    head = model.proj_out.weight[torch.tensor(tokens, device=model.proj_out.weight.device)]
    made.proj_out = torch.nn.Linear(head.shape[1], head.shape[0], bias=False, device="meta")
    made.proj_out.weight = torch.nn.Parameter(head.contiguous(), requires_grad=False)
    return made


class CutHead:
    """A decoder over a part of the vocabulary, as a `Model` of all of it: other logits are -inf.

    `decoder` makes the adapter of a transformers model.
    """

    def __init__(self, decoder: Callable[[Any], Model], model: Any, tokens: Sequence[int]) -> None:
        chosen = sorted(tokens)
        self.vocab_size: int = model.config.vocab_size
        self._inner = decoder(with_cut_head(model, chosen))
        self._ids = torch.tensor(chosen, device=model.proj_out.weight.device)

    @property
    def max_positions(self) -> int:
        return self._inner.max_positions

    def allocate(self, batch: int, slots: int) -> None:
        self._inner.allocate(batch, slots)

    def prefill(self, rows: Tensor, tokens: Tensor, encoder_states: Sequence[Any]) -> Tensor:
        return self._inner.prefill(rows, tokens, encoder_states)[:, :0]  # nobody probes a draft

    def score(
        self, tokens: Tensor, start: Tensor, *, reach: int, topology: Topology | None = None
    ) -> Scores:
        scores = self._inner.score(tokens, start, reach=reach, topology=topology).logits
        whole = scores.new_full((*scores.shape[:-1], self.vocab_size), float("-inf"))
        return Scores(whole.index_copy_(-1, self._ids, scores))

    def commit(self, start: Tensor, path: Tensor) -> None:
        self._inner.commit(start, path)
