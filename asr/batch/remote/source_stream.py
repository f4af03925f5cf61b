"""A stream of recordings that can be asked whether the next one is there already.

    stream = SourceStream(pulled, is_ready)
    if stream.ready: next(stream)        # does not wait

A reader that collects recordings ahead need not wait for one that is still being fetched while it has
others. Knows nothing of recordings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class SourceStream(Iterator[Any]):
    """The items of `pulled`; `is_ready` says whether its next one comes at once."""

    def __init__(self, pulled: Iterator[Any], is_ready: Callable[[], bool]) -> None:
        self.pulled, self.is_ready = pulled, is_ready

    @property
    def ready(self) -> bool:
        return self.is_ready()

    def __next__(self) -> Any:
        return next(self.pulled)


__all__ = ["SourceStream"]
