"""The drafter that runs a head.

Knows the two kinds of records; nothing of formats.
"""

from __future__ import annotations

from ...models.heads.head_record import BlockHead, Head
from .block_drafter import BlockDrafter
from .chain_drafter import ChainDrafter


def drafter_of(head: Head, *, confidence: float = 0.0) -> ChainDrafter | BlockDrafter:
    """The drafter of a chain head or a block head; see their `confidence`."""
    if isinstance(head, BlockHead):
        return BlockDrafter(head, confidence=confidence)
    return ChainDrafter(head, confidence=confidence)
