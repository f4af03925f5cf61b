"""Blocking context managers in asynchronous code.

    async with in_thread(uploads.whole(id, caller)) as file: ...

They are entered and left in threads, because they wait for disks and databases. Knows nothing of either.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


@asynccontextmanager
async def in_thread(block: AbstractContextManager[T]) -> AsyncIterator[T]:
    """The value of `block`, which is entered and left outside the event loop, also when the task is
    cancelled."""
    entering = asyncio.ensure_future(asyncio.to_thread(block.__enter__))
    try:
        value = await asyncio.shield(entering)
    except asyncio.CancelledError:
        entering.add_done_callback(lambda done: _leave_later(block, done))
        raise
    try:
        yield value
    except BaseException:
        if not await asyncio.shield(asyncio.to_thread(block.__exit__, *sys.exc_info())):
            raise
    else:
        await asyncio.shield(asyncio.to_thread(block.__exit__, None, None, None))


def _leave_later(block: AbstractContextManager[T], entered: asyncio.Future[T]) -> None:
    """Leave a block that was entered for a task that has been cancelled."""
    if not entered.cancelled() and entered.exception() is None:
        asyncio.get_running_loop().run_in_executor(None, block.__exit__, None, None, None)
