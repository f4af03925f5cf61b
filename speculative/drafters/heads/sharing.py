"""What a head shares with its target: embeddings and output layer.

Knows two methods of a target; nothing of its layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import embedding as lookup

from ...errors import LoadError
from ...protocols import Model


@dataclass(frozen=True, eq=False)
class SharedLayers:
    """The functions that a head calls besides its own layers."""

    embed: Callable[[Tensor], Tensor]  # tokens [...] -> [..., E]
    head: Callable[[Tensor], Tensor]  # normed states [..., H] -> logits [..., V] float32

    @classmethod
    def of(cls, target: Model, embedding: Tensor | None) -> SharedLayers:
        """Of a target; `embedding [V, E]` is the head's own, where it has one. Raises LoadError for a target
        that does not share its layers."""
        embed, head = getattr(target, "embed", None), getattr(target, "head", None)
        if embed is None or head is None:
            raise LoadError(
                f"{type(target).__name__} does not share its embeddings and output layer, which a head "
                "needs: take an ordinary draft model"
            )
        if embedding is None:
            return cls(embed, head)
        return cls(lambda tokens: lookup(tokens, embedding), head)
