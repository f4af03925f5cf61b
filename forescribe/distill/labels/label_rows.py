"""One labelled sequence: its tokens, and the target's distribution at every position that it wrote.

Knows token ids; nothing of files and models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from .sparse_distribution import SparseDistribution

OWN, GENERAL = "own", "general"
"""Kinds of rows: of the user's data, and of what is mixed in so that a draft keeps what it could do."""


@dataclass(frozen=True, eq=False)
class LabelRow:
    """A prompt with the target's answer.

    `tokens` hold both; the answer begins at `begin`. `wanted` has one distribution for each of its tokens.
    `greedy` says that the answer is the target's choice at every place, else it was drawn at temperature 1.
    `states` reads the encoder states `[S, D]` of the target and of the draft; text has none.
    """

    source: str
    kind: str
    tokens: tuple[int, ...]
    begin: int
    greedy: bool
    wanted: SparseDistribution
    states: Callable[[], tuple[Tensor, Tensor]] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.begin < len(self.tokens):
            raise ValueError(f"an answer begins at {self.begin} of {len(self.tokens)} tokens")
        if len(self.wanted) != self.answered:
            raise ValueError(f"{len(self.wanted)} distributions for {self.answered} tokens")

    @property
    def answered(self) -> int:
        """Tokens of the answer."""
        return len(self.tokens) - self.begin
