"""TokenMap: which token of a draft stands for which token of its target.

Knows ids; nothing of texts, tokenizers, tensors or models.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

NONE = -1
"""In place of a target id: the draft's token has no partner."""


@dataclass(frozen=True)
class TokenMap:
    """The ids of a target with V tokens and of a draft with W.

    `to_draft [V]` says how the draft reads each target token: every one can be read, if only as a token that
    stands in for it. `to_target [W]` says which target token a drafted one proposes, `NONE` where the target
    has no such token: it is never drafted. Partners are pairs: `to_draft[to_target[d]] == d`.

    Raises ValueError for ids outside of the vocabularies, and for a token with two partners.
    """

    to_draft: tuple[int, ...]
    to_target: tuple[int, ...]

    def __post_init__(self) -> None:
        V, W = len(self.to_draft), len(self.to_target)
        if not V or not W:
            raise ValueError(f"vocabularies of {V} and {W} tokens")
        if not all(0 <= draft < W for draft in self.to_draft):
            raise ValueError(f"a target token is read as a token outside of the draft's {W}")
        for draft, target in enumerate(self.to_target):
            if target == NONE:
                continue
            if not 0 <= target < V:
                raise ValueError(f"draft token {draft} is target token {target} of {V}")
            if self.to_draft[target] != draft:
                raise ValueError(
                    f"draft token {draft} is target token {target}, which is read as "
                    f"{self.to_draft[target]}"
                )
        if not self.partners:
            raise ValueError("no token of the draft has a partner")

    @cached_property
    def partners(self) -> tuple[int, ...]:
        """The draft's tokens that have a partner, ascending: all that it may propose."""
        return tuple(d for d, target in enumerate(self.to_target) if target != NONE)

    @property
    def is_identity(self) -> bool:
        """Whether both vocabularies are the same."""
        whole = tuple(range(len(self.to_draft)))
        return self.to_draft == whole and self.to_target == whole

    def proposed(self, listed: Collection[int] | None) -> tuple[int, ...] | None:
        """The draft's tokens that its head needs, ascending: those of `listed` (None: all) with a partner;
        None where these are all of its tokens. Raises ValueError where none is left."""
        if listed is None:
            return None if len(self.partners) == len(self.to_target) else self.partners
        known = frozenset(listed)
        kept = tuple(d for d in self.partners if d in known)
        if not kept:
            raise ValueError("no token of the list has a partner")
        return kept
