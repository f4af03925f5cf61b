"""The base of the adapters: slots, positions and masks around one forward of a decoder.

Knows transformers' caches; nothing of any family of models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from ..drafts import Scores, Topology
from .cache import SlotCache, chain_mask, tree_mask


class SlotModel(ABC):
    """Implements `speculative.protocols.Model` on top of two methods of a family's adapter.

    It knows slots, positions and masks; the adapter knows how its decoder is called.
    """

    def __init__(
        self, *, device: torch.device, dtype: torch.dtype, vocab_size: int, positions: int
    ):
        self.device, self.dtype = device, dtype
        self._vocab_size, self._positions = vocab_size, positions
        self.cache: SlotCache | None = None
        self._trees: dict[Topology, tuple[Tensor, Tensor]] = {}

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def max_positions(self) -> int:
        return self._positions

    @abstractmethod
    def new_cache(self, batch: int, slots: int) -> SlotCache:
        """A cache for `batch` rows of `slots` slots."""

    @abstractmethod
    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Tensor,
        cache: Cache,
        encoder_states: Tensor | None,
    ) -> Scores:
        """The decoder over `tokens [B, N]`; `encoder_states` only in a prefill, for cross-attention."""

    def stack_encoder_states(self, encoder_states: Sequence[Any]) -> Tensor | None:
        """Stacks the encoder states of the requests; None for a family without cross-attention."""
        return None

    def allocate(self, batch: int, slots: int) -> None:
        self.cache = self.new_cache(batch, slots)

    def _allocated(self) -> SlotCache:
        if self.cache is None:
            raise RuntimeError("allocate() comes before the first forward")
        return self.cache

    @torch.inference_mode()
    def prefill(self, rows: Tensor, tokens: Tensor, encoder_states: Sequence[Any]) -> Tensor:
        cache = self._allocated()
        slots = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        mask = chain_mask(slots, tokens.shape[1], self.dtype)
        return self.forward(
            tokens,
            self._positions_at(slots),
            mask,
            cache.prefill(rows),
            self.stack_encoder_states(encoder_states),
        ).logits

    def score(
        self, tokens: Tensor, start: Tensor, *, reach: int, topology: Topology | None = None
    ) -> Scores:
        cache = self._allocated()
        slots = start[:, None] + torch.arange(tokens.shape[1], device=tokens.device)  # [B, N]
        if topology is None:
            positions, mask = slots, chain_mask(slots, reach, self.dtype)
        else:
            depths, ancestry = self._tree(topology)
            positions = start[:, None] + depths
            mask = tree_mask(start, ancestry, reach, self.dtype)
        return self.forward(
            tokens, self._positions_at(positions), mask, cache.decode(slots, reach), None
        )

    def commit(self, start: Tensor, path: Tensor) -> None:
        column = torch.arange(path.shape[1], device=path.device)
        self._allocated().move(start[:, None] + path, start[:, None] + column)

    def _positions_at(self, slots: Tensor) -> Tensor:
        # Slots run past the last learned position by the drafts of a row that is about to end. Those
        # positions are clamped (their scores are cut off); their slots are not, or two would collide.
        return slots.clamp(0, self._positions - 1)

    def _tree(self, topology: Topology) -> tuple[Tensor, Tensor]:
        if topology not in self._trees:
            self._trees[topology] = (
                torch.tensor(topology.depths, device=self.device),
                torch.tensor(topology.ancestry(), device=self.device),
            )
        return self._trees[topology]
