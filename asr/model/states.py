"""Encoder states: what a speech model and its drafts give for a window. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor

Features = Tensor | Mapping[str, Tensor]
"""What an encoder reads of a window: `[M, F]` where it is Whisper's, else its arguments by name."""

Encode = Callable[[Sequence[Any]], list[Tensor]]
"""Encoder states of windows, from the features of each."""


@dataclass(frozen=True)
class EncoderStates:
    """The encoder states `[S, D]` of a window: the target's, and those that each draft reads. `chosen` is the
    draft that proposes for this window. A model whose decoder reads them in its prompt has them `at` this
    place of it."""

    target: Tensor
    by_draft: tuple[Tensor | DraftStates, ...] = ()
    chosen: int = 0
    at: int = 0

    @property
    def drafts(self) -> tuple[Tensor, ...]:
        """Those of all drafts."""
        return tuple(map(self.of_draft, range(len(self.by_draft))))

    @property
    def draft(self) -> Tensor | None:
        """Those of the draft that proposes; None without drafts."""
        return self.of_draft(self.chosen) if self.by_draft else None

    def of_draft(self, index: int) -> Tensor:
        """Those of a draft. May run its encoder."""
        states = self.by_draft[index]
        return states if isinstance(states, Tensor) else states.read()


class DraftStates:
    """The states of a window by a draft's own encoder. It runs when they are first read, for all windows of
    the batch that are still in use: plain rounds, which an adaptive draft length chooses where drafts do not
    pay, need none. Is used by one thread."""

    def __init__(self, encode: Encode, features: Features) -> None:
        self._encode, self.features = encode, features
        self._batch: Sequence[ReferenceType[DraftStates]] = ()
        self._states: Tensor | None = None

    @classmethod
    def of(cls, encode: Encode, features: Iterable[Features]) -> list[DraftStates]:
        """Those of a batch, from the features of its windows."""
        made = [cls(encode, row) for row in features]
        for each in made:
            each._batch = [ref(other) for other in made]
        return made

    @torch.inference_mode()
    def read(self) -> Tensor:
        """The states `[S, D]`. Numbers that are not finite are 0: a draft of them is a bad one, and no fault
        of the window."""
        if self._states is None:
            used = [each for reference in self._batch if (each := reference()) is not None]
            try:
                encoded = self._encode([each.features for each in used])
            except Exception:
                if len(used) == 1:
                    raise
                used, encoded = [self], self._encode([self.features])
            for each, states in zip(used, encoded, strict=True):
                each._states = states.nan_to_num_(0.0, 0.0, 0.0)
                each.features, each._batch = {}, ()
        assert self._states is not None
        return self._states
