"""Blocks that wait for disks and databases, entered and left outside the event loop."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import pytest

from forescribe.api.http.bodies import in_thread


def test_a_block_is_entered_and_left_in_threads_whatever_happens() -> None:
    seen: list[tuple[str, bool]] = []

    @contextmanager
    def block(value: int):
        seen.append(("in", threading.current_thread() is threading.main_thread()))
        try:
            yield value
        except KeyError:
            seen.append(("KeyError", False))
            raise
        finally:
            seen.append(("out", threading.current_thread() is threading.main_thread()))

    async def use() -> None:
        async with in_thread(block(7)) as value:
            assert value == 7
        with pytest.raises(KeyError):
            async with in_thread(block(8)):
                raise KeyError

    asyncio.run(use())
    steps = ["in", "out", "in", "KeyError", "out"]
    assert seen == [(step, False) for step in steps]


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
