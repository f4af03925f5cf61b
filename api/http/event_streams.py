"""Server-sent events: answers that begin before all of them is known.

return EventStream(encoded(messages()), cleanup)

data: {"type": "transcript.text.delta", "delta": "..."}
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ..errors import ApiError

PING_S = 15.0
"""Proxies close a connection that is silent for a minute."""

PING = b": ping\n\n"

NO_BUFFER = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Without them a proxy may hold events back until it has enough."""


class EventStream(StreamingResponse):
    """An answer of events. `cleanup` is called when it ends or the client disconnects, even if no event
    was read."""

    media_type = "text/event-stream"

    def __init__(self, body: AsyncIterator[bytes], cleanup: Callable[[], None]) -> None:
        super().__init__(body, headers=NO_BUFFER)
        self.cleanup = cleanup

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.cleanup()


async def encoded(
    messages: AsyncGenerator[Mapping[str, object], None],
) -> AsyncGenerator[bytes, None]:
    """An event for each message, pings between them, and `[DONE]` at the end. A failure is an event named
    `error`, which OpenAI's SDKs raise."""
    coming: asyncio.Future[Mapping[str, object] | None] | None = None
    try:
        while True:
            coming = asyncio.ensure_future(anext(messages, None))
            while not (await asyncio.wait({coming}, timeout=PING_S))[0]:
                yield PING
            if (message := coming.result()) is None:
                break
            yield _data(message)
        yield b"data: [DONE]\n\n"
    except ApiError as error:
        yield b"event: error\n" + _data(error.body())
    finally:
        if coming is not None:
            coming.cancel()


def _data(body: Mapping[str, object]) -> bytes:
    """On one line."""
    return b"data: " + json.dumps(body, ensure_ascii=False, allow_nan=False).encode() + b"\n\n"
