"""HTTP connections: uvicorn's protocol, with a time limit for request heads, and errors in OpenAI's format.

uvicorn waits without limit for the first byte of a connection and for the rest of a request's head, so
clients that send a byte a minute could hold all connections of the process. It also answers invalid HTTP
with plain text. Does not know routes; bodies are limited by `api.http.pace`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import ApiError

HEAD_S = 20.0
"""Seconds from the start of a connection, or the end of the previous answer, to the end of a request's head.
Between two requests uvicorn's own limit is shorter."""


class Protocol(H11Protocol):
    """For `uvicorn.Config(http=Protocol)`."""

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
