"""uvicorn's protocols: what it leaves open for a service.

Of HTTP:
- uvicorn waits without end for a connection's first byte and the rest of a request's head. Here both have
  `HEAD_S`: a client that stalls would hold its connection as long as it likes.
- Invalid HTTP is answered in OpenAI's format, where uvicorn has plain text.

Of sockets:
- At the end of the process uvicorn closes sockets at once. Here the application hears of it, as a disconnect
  with code 1012, ends its work and closes them itself.
- A client that reads nothing keeps a connection alive for as long as it likes, because what was written has
  to go out first, and the close waits for that. Here the close is written behind it at once, for when the
  client reads on, and the connection is aborted `LINGER_S` after the application has left it.
- A client whose messages are not read at present is not late with its answers to pings: they are behind the
  messages.
- Its log lines have addresses of clients and paths with queries, which no log here has.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from ..errors import ApiError

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

HEAD_S = 20.0
"""Seconds from the start of a connection, or the end of the previous answer, to the end of a request's head.
Between two requests uvicorn's own limit is shorter."""

LINGER_S = 30.0

PING_S, PONG_S = 20.0, 40.0
"""Between pings, and for the answer: a client that is gone is noticed after a minute."""

log = logging.getLogger("forescribe.api.sockets")
log.setLevel(logging.WARNING)
# uvicorn says so of every socket that was refused with an answer, which is no fault.
log.addFilter(lambda record: "without completing handshake" not in record.getMessage())


class HttpProtocol(H11Protocol):
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
            fields = [*headers.items(), ("connection", "close")]
            head = h11.Response(status_code=error.status, headers=fields)
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class SocketProtocol(WebSocketsSansIOProtocol):
    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.logger = self.conn.logger = log

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "websocket.close":
            self.writable.set()
        await super().send(message)

    async def run_asgi(self) -> None:
        try:
            await super().run_asgi()
        finally:
            self.loop.call_later(LINGER_S, self.transport.abort)

    def shutdown(self) -> None:
        if not self.handshake_complete or self.close_sent:
            return super().shutdown()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1012})

    def keepalive_timeout(self) -> None:
        if self.read_paused:
            self.pong_timer = self.pending_ping_payload = None
            return self.schedule_ping()
        super().keepalive_timeout()
        self.loop.call_later(LINGER_S, self.transport.abort)
