"""What a session has to send: a queue that a slow reader cannot make long.

    outbox.put(message)             # on the event loop; never waits
    await outbox.run(send)          # sends, until cancelled or the client is gone
    await outbox.empty()

While messages wait, a newer hypothesis of the same item takes the place of an older one, and a delta is
joined to the delta before it. What is still too much is for the caller to judge, by `size`. Knows of events
these two.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Awaitable, Callable

from .events import DELTA, HYPOTHESIS, Message

Send = Callable[[str], Awaitable[None]]


class Outbox:
    """Messages of one session, in order."""

    def __init__(self) -> None:
        self.size = 0
        """Characters that wait."""
        self._waiting: deque[tuple[Message, int]] = deque()
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._session, self._sent = secrets.token_hex(6), 0

    def put(self, message: Message) -> None:
        if message["type"] == HYPOTHESIS:
            self._drop_hypothesis(message["item_id"])
        elif message["type"] == DELTA and self._waiting:
            last, size = self._waiting[-1]
            if last["type"] == DELTA and last["item_id"] == message["item_id"]:
                self._waiting.pop()
                self.size -= size
                message = _joined(last, message)
        size = len(_text(message))
        self._waiting.append((message, size))
        self.size += size
        self._idle.clear()
        self._changed.set()

    async def run(self, send: Send) -> None:
        """Raises what `send` raises."""
        while True:
            while self._waiting:
                message, size = self._waiting.popleft()
                self.size -= size
                self._sent += 1
                await send(_text({"event_id": f"event_{self._session}{self._sent:06}", **message}))
            self._idle.set()
            self._changed.clear()
            await self._changed.wait()

    async def empty(self) -> None:
        """Return once everything was sent."""
        await self._idle.wait()

    def _drop_hypothesis(self, item_id: str) -> None:
        for entry in reversed(self._waiting):
            message, size = entry
            if message["type"] == HYPOTHESIS and message["item_id"] == item_id:
                self._waiting.remove(entry)
                self.size -= size
                return


def _joined(first: Message, second: Message) -> Message:
    """A delta of two."""
    logprobs = None
    if second["logprobs"] is not None:
        logprobs = [*(first["logprobs"] or ()), *second["logprobs"]]
    return {**second, "delta": first["delta"] + second["delta"], "logprobs": logprobs}


def _text(message: Message) -> str:
    return json.dumps(message, ensure_ascii=False, allow_nan=False)
