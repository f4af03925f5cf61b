"""The encoder states of a window: what its decoders read of the audio.

A target's are made when the window is encoded. A draft with an encoder of its own may never be asked: plain
rounds, which an adaptive draft length chooses where drafts do not pay, need no states of it. So its encoder
runs when it has to read a prompt. A short file of its own: whoever handles windows imports it, and only those
who load models import `loading`. Is used by one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import ReferenceType, ref

import torch
from torch import Tensor


@dataclass(frozen=True)
class EncoderStates:
    """The encoder states `[S, D]` of a window: the target's, and those that each draft reads. `chosen` is the
    draft that proposes for this window."""

    target: Tensor
    by_draft: tuple[Tensor | DraftStates, ...] = ()
    chosen: int = 0

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
    the batch that are still in use."""

    def __init__(self, encode: Callable[[Tensor], list[Tensor]], features: Tensor) -> None:
        self._encode, self.features = encode, features  # [M, F]
        self._batch: Sequence[ReferenceType[DraftStates]] = ()
        self._states: Tensor | None = None

    @classmethod
    def of(cls, encode: Callable[[Tensor], list[Tensor]], features: Tensor) -> list[DraftStates]:
        """Those of a batch, from its features `[B, M, F]`."""
        made = [cls(encode, row.clone()) for row in features]
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
                encoded = self._encode(torch.stack([each.features for each in used]))
            except Exception:
                if len(used) == 1:
                    raise
                used, encoded = [self], self._encode(self.features[None])
            for each, states in zip(used, encoded, strict=True):
                each._states = states.nan_to_num_(0.0, 0.0, 0.0)
                each.features, each._batch = states.new_empty(0), ()
        assert self._states is not None
        return self._states
