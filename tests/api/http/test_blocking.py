"""Blocks that wait for disks and databases, entered and left outside the event loop."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import pytest

from forescribe.api.http.bodies import in_thread


def test_a_block_that_was_being_entered_for_a_cancelled_task_is_left() -> None:
    go, left = threading.Event(), threading.Event()

    @contextmanager
    def slow():
        assert go.wait(30)
        try:
            yield
        finally:
            left.set()

    async def use() -> None:
        async def enter() -> None:
            async with in_thread(slow()):
                raise AssertionError("it was cancelled")

        task = asyncio.create_task(enter())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        assert await asyncio.to_thread(left.wait, 30)

    asyncio.run(use())
