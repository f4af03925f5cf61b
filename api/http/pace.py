"""Pace: lower limits for the speed at which a request's head and its body arrive.

A client that stalls would otherwise hold its connection, its file and its share of the uploads as long as it
likes. `HttpProtocol` limits heads, for which uvicorn waits without end: a connection's first byte, and the
rest of the head. `Pace` limits bodies: a request ends with 408 after `idle_s` without a byte, and once its
average rate, after that first grace period, is below `rate` bytes per second. It also ends with 408 when
another request needs its place (`api.access.limits`), which finds the request's `Body` in `state.body`. Only
time spent waiting for the client counts, not time that this server needs, for example to write to a slow
disk. Does not know routes.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable
from typing import Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import RETRY_S, ApiError

HEAD_S = 20.0
"""Seconds from the start of a connection, or the end of the previous answer, to the end of a request's head.
Between two requests uvicorn's own limit is shorter."""

IDLE_S = 30.0
"""The longest pause in a body: mobile networks have some of ten seconds."""

MIN_RATE = 1024.0
"""Bytes per second of a body: a tenth of speech in the most economical codec."""

YOUNG_S = 2.0
"""How long a body may take to begin before its rate is known."""

SILENT_S = 5.0
"""After so long without a byte a body counts as stalled, however fast it was before."""

Clock = Callable[[], float]


class Pace:
    """ASGI middleware that limits bodies."""

    def __init__(self, app: ASGIApp, clock: Clock = time.monotonic) -> None:
        self.app, self.clock = app, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        body = Body(receive, IDLE_S, MIN_RATE, self.clock)
        scope.setdefault("state", {})["body"] = body

        async def send_and_note(message: Message) -> None:
            body.answered = True
            await send(message)

        await self.app(scope, body.receive, send_and_note)


class Body:
    """A request's body while it is received."""

    def __init__(self, receive: Receive, idle_s: float, rate: float, clock: Clock) -> None:
        self._receive, self.idle_s, self.min_rate, self.clock = receive, idle_s, rate, clock
        self._complete, self._bytes, self._waited_s = False, 0, 0.0
        self._began_s: float | None = None  # of the wait in progress
        self._limit: asyncio.Timeout | None = None  # of the wait in progress
        self._dropped = False
        self.answered = False
        """Whether the answer has begun, so that no error can be sent any more: a stream of events also
        receives, to notice a disconnect, and a body that no route reads may still arrive."""

    async def receive(self) -> Message:
        """The next message. If it is late, the client counts as disconnected if its answer has begun;
        otherwise raises ApiError `request_timeout`."""
        if self._complete:
            return await self._receive()
        if self._dropped:
            return self._late()
        left_s = self.idle_s + self._bytes / self.min_rate - self._waited_s
        self._began_s = self.clock()
        try:
            async with asyncio.timeout(min(self.idle_s, max(0.0, left_s))) as self._limit:
                message = await self._receive()
        except TimeoutError:
            return self._late()
        finally:
            self._waited_s += self.clock() - self._began_s
            self._began_s = self._limit = None
        self._complete = message["type"] != "http.request" or not message.get("more_body", False)
        self._bytes += len(message.get("body", b""))
        late = self._waited_s > self.idle_s + self._bytes / self.min_rate
        return self._late() if not self._complete and (late or self._dropped) else message

    def rate(self) -> float:
        """Bytes per second of waiting for the client: infinite in the first seconds and once the body is
        complete, 0 if it has stalled."""
        silent_s = 0.0 if self._began_s is None else self.clock() - self._began_s
        waited_s = self._waited_s + silent_s
        if self._complete or waited_s < YOUNG_S:
            return math.inf
        return 0.0 if silent_s >= SILENT_S else self._bytes / waited_s

    def drop(self) -> None:
        """End the body: another needs its place. Call it on the event loop."""
        self._dropped = True
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    def _late(self) -> Message:
        if self.answered:
            return {"type": "http.disconnect"}
        if self._dropped:
            text = f"the body came too slowly, and another needed its place: {self._bytes} bytes so far"
            raise ApiError("request_timeout", text, retry_after=RETRY_S)
        text = (
            f"the body came too slowly: {self._bytes} bytes, with {self.idle_s:g} s of silence or less "
            f"than {self.min_rate:g} bytes per second"
        )
        raise ApiError("request_timeout", text)


class HttpProtocol(H11Protocol):
    """uvicorn's protocol for `uvicorn.Config(http=HttpProtocol)`, with a time limit for request heads, and
    errors in OpenAI's format where uvicorn answers invalid HTTP with plain text."""

    head_s = HEAD_S
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_timer()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError("invalid_value", "this is not a valid HTTP request"))

    def _update_timer(self) -> None:
        """Run the timer while no request is being answered and the connection is still HTTP."""
        answering = self.cycle is not None and not self.cycle.response_complete
        closed = self.transport.is_closing() or self.transport.get_protocol() is not self
        if answering or closed:
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_s, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        text = f"no request arrived within {self.head_s:g} s"
        self._refuse(ApiError("request_timeout", text))

    def _refuse(self, error: ApiError) -> None:
        """Send an error, if no answer has begun on this connection, and close it. The application, if it is
        at work on the request, finds its client gone: it must not send a second answer."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = json.dumps(error.body()).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            events: list[Any] = [
                h11.Response(
                    status_code=error.status,
                    headers=[*headers.items(), ("connection", "close")],
                ),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ]
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
