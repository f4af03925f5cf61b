"""Equality: how many of a system's tokens are those of plain decoding.

Knows tokens; nothing of how they were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Tokens = Sequence[int]


@dataclass(frozen=True)
class Equality:
    """Tokens count as equal up to the first difference in their window: after it the systems decode
    different prefixes, so agreement has no meaning."""

    tokens: int
    tokens_of: int  # of plain decoding, without end-of-text
    windows: int
    windows_of: int

    @property
    def complete(self) -> bool:
        return self.windows == self.windows_of


def compare(plain: Sequence[Tokens], other: Sequence[Tokens]) -> Equality:
    """Compare window by window, both without end-of-text, which some systems do not return."""
    pairs = list(zip(plain, other, strict=True))
    return Equality(
        tokens=sum(_common(a, b) for a, b in pairs),
        tokens_of=sum(len(a) for a in plain),
        windows=sum(list(a) == list(b) for a, b in pairs),
        windows_of=len(pairs),
    )


def _common(a: Tokens, b: Tokens) -> int:
    """Length of the common prefix."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
