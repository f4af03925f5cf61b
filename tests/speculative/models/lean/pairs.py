"""The same forwards through transformers' modules and through a lean decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from forescribe.speculative.models.slot_model import SlotModel


class Pair:
    """A model twice: `theirs` runs modules, `ours` is lean. Every method returns what both gave."""

    def __init__(self, theirs: SlotModel, ours: SlotModel, *, batch: int, slots: int) -> None:
        self.models = theirs, ours
        self.slots = slots
        self.vocab = min(theirs.vocab_size, ours.vocab_size)
        self.random = torch.Generator().manual_seed(0)
        self.starts = torch.zeros(batch, dtype=torch.int64)
        for model in self.models:
            model.allocate(batch, slots)

    def tokens(self, rows: int, count: int) -> Tensor:
        return torch.randint(self.vocab, (rows, count), generator=self.random)

    def prefill(
        self, rows: Sequence[int], length: int, states: Sequence[Any]
    ) -> tuple[Tensor, Tensor]:
        index, tokens = torch.tensor(rows), self.tokens(len(rows), length)
        self.starts[index] = length - 1
        first, second = (model.prefill(index, tokens, states).logits for model in self.models)
        return first, second

    @torch.inference_mode()
    def score(self, count: int) -> tuple[Tensor, Tensor]:
        """Scores `count` tokens per row from `starts` on."""
        tokens = self.tokens(len(self.starts), count)
        reach = min(int(self.starts.max()) + count + 2, self.slots)
        first, second = (
            model.score(tokens, self.starts, reach=reach).logits for model in self.models
        )
        return first, second


def close(pair: tuple[Tensor, Tensor], bound: float) -> bool:
    """Whether logits agree within `bound`, and in the most likely token where they are finite."""
    theirs, ours = pair
    if theirs.numel() == 0 == ours.numel():
        return True
    assert ours.dtype == torch.float32 and ours.is_contiguous()
    near = bool(((theirs - ours).abs() <= bound).all())
    return near and bool((theirs.argmax(-1) == ours.argmax(-1)).all())
