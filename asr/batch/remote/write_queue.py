"""Writing in the background: results go to a distant store while the engine works.

    queue = WriteQueue()
    for result in queue.add(write): ...     # those that are written by now
    for result in queue.rest(): ...         # waits for all others

Bounded: if many results wait, adding one waits for the first. Knows calls that return results; nothing of
what they do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from ..recording_results import RecordingResult

WRITERS = 8
WAITING = 64
"""Results that may wait: each holds a transcript in memory."""


class WriteQueue:
    """Calls in threads, and their results in the order in which they were added."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(WRITERS, "write")
        self._written: deque[Future[RecordingResult]] = deque()

    def add(self, write: Callable[[], RecordingResult]) -> Iterator[RecordingResult]:
        """Call `write` in a thread; yields what is written by now."""
        self._written.append(self._pool.submit(write))
        while self._written and (self._written[0].done() or len(self._written) > WAITING):
            yield self._written.popleft().result()

    def rest(self) -> Iterator[RecordingResult]:
        """Wait for everything that was added."""
        while self._written:
            yield self._written.popleft().result()

    def close(self) -> None:
        """Wait for the threads."""
        self._pool.shutdown()


__all__ = ["WriteQueue"]
