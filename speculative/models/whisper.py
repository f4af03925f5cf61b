"""The base of the adapters of Whisper's decoder; `causal` is the same for text models.

Knows a Whisper's configuration; nothing of how an adapter or a kernel computes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from .slot_model import SlotModel


class WhisperModel(SlotModel):
    """The decoder of a Whisper model: a `PlainWhisper`, or of transformers.

    `pick` selects this model's encoder states `[S, D]` from those of a request; `sources` is S where it is
    not the model's own. Native kernels store weights and caches in `stored`, None: in the model's dtype; the
    other engines have no storage of their own. Of a draft, `listed` are the only tokens that it proposes
    (None: all): its head has their rows alone. Raises LoadError for a model that the engine cannot run.
    """

    output: Callable[[Tensor], Tensor]
    """The output layer, with the rows of `listed` alone; set by `prepare`."""

    def __init__(
        self,
        model: Any,
        pick: Callable[[Any], Tensor] = lambda encoder_states: encoder_states,
        *,
        sources: int | None = None,
        stored: torch.dtype | None = None,
        listed: Sequence[int] | None = None,
    ) -> None:
        config = model.config
        self.config, self.pick = config, pick
        self.sources = config.max_source_positions if sources is None else sources
        self.model, weight = model, model.model.decoder.embed_tokens.weight
        super().__init__(
            device=weight.device,
            dtype=weight.dtype,
            vocab_size=config.vocab_size,
            positions=config.max_target_positions,
            layers=config.decoder_layers,
            listed=listed,
        )
        self.prepare(model, stored or self.dtype)

    @abstractmethod
    def prepare(self, model: Any, stored: torch.dtype) -> None:
        """Reads from the model what the adapter needs. Raises LoadError where it lacks that."""

    def embed(self, tokens: Tensor) -> Tensor:
        decoder = self.model.model.decoder
        return embedding(tokens, decoder.embed_tokens.weight.detach())

    def head(self, states: Tensor) -> Tensor:
        return self.whole(self.output(states).float())

    def stacked(self, encoder_states: Sequence[Any]) -> Tensor:
        """The encoder states `[K, S, D]` of requests."""
        return torch.stack([self.pick(s) for s in encoder_states]).to(self.device, self.dtype)
