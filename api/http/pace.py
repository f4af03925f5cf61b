"""Pace: a lower limit for the speed at which a request's body arrives.

A client that stalls would otherwise hold its connection, its file and its share of the uploads as long as
it likes. A request ends with 408 after `idle_s` without a byte, and once its average rate, after that first
grace period, is below `rate` bytes per second. Only time spent waiting for the client counts, not time that
this server needs, for example to write to a slow disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ApiError

Clock = Callable[[], float]


class Pace:
    """ASGI middleware."""

    def __init__(
        self, app: ASGIApp, idle_s: float, rate: float, clock: Clock = time.monotonic
    ) -> None:
        self.app, self.idle_s, self.rate, self.clock = app, idle_s, rate, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        body = Body(receive, self.idle_s, self.rate, self.clock)

        async def send_and_note(message: Message) -> None:
            body.answered = True
            await send(message)

        await self.app(scope, body.receive, send_and_note)


class Body:
    """A request's body while it is received."""

    def __init__(self, receive: Receive, idle_s: float, rate: float, clock: Clock) -> None:
        self._receive, self.idle_s, self.rate, self.clock = receive, idle_s, rate, clock
        self._complete, self._bytes, self._waited_s = False, 0, 0.0
        self.answered = False
        """Whether the answer has begun, so that no error can be sent any more: a stream of events also
        receives, to notice a disconnect, and a body that no route reads may still arrive."""

    async def receive(self) -> Message:
        """The next message. If it is late, the client counts as disconnected if its answer has begun;
        otherwise raises ApiError `request_timeout`."""
        if self._complete:
            return await self._receive()
        left_s = self.idle_s + self._bytes / self.rate - self._waited_s
        began_s = self.clock()
        try:
            async with asyncio.timeout(min(self.idle_s, max(0.0, left_s))):
                message = await self._receive()
        except TimeoutError:
            return self._late()
        self._waited_s += self.clock() - began_s
        self._complete = message["type"] != "http.request" or not message.get("more_body", False)
        self._bytes += len(message.get("body", b""))
        if not self._complete and self._waited_s > self.idle_s + self._bytes / self.rate:
            return self._late()
        return message

    def _late(self) -> Message:
        if self.answered:
            return {"type": "http.disconnect"}
        text = (
            f"the body came too slowly: {self._bytes} bytes, with {self.idle_s:g} s of silence or less "
            f"than {self.rate:g} bytes per second"
        )
        raise ApiError("request_timeout", text)
