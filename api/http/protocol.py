"""The server's HTTP connections: uvicorn's, with an end to waiting for a request, and errors in our form.

uvicorn waits without limit for the first byte of a connection and for the rest of a request's head, so
that clients which send a byte a minute could hold all connections that the process may have. It also
answers what is no HTTP with plain text. Knows nothing of routes; bodies are `api.http.pace`'s.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import ApiError

HEAD_S = 20.0
"""From the opening of a connection, or the end of the answer before, to the end of a request's head.
Between two requests uvicorn's own limit is shorter."""


class Protocol(H11Protocol):
    """For `uvicorn.Config(http=Protocol)`."""

    head_s = HEAD_S
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError("invalid_value", "this is no valid HTTP request"))

    def _watch(self) -> None:
        """The clock runs as long as no request is being answered, and the connection is HTTP still."""
        answering = self.cycle is not None and not self.cycle.response_complete
        over = self.transport.is_closing() or self.transport.get_protocol() is not self
        if answering or over:
            self._unwatch()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(self.head_s, self._late)

    def _unwatch(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _late(self) -> None:
        self._waiting = None
        text = f"no request came within {self.head_s:g} s"
        self._refuse(ApiError("request_timeout", text))

    def _refuse(self, error: ApiError) -> None:
        """The answer, if none has begun on this connection, and its end."""
        if self.transport.is_closing():
            return
        body = json.dumps(error.body()).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            sent: list[Any] = [
                h11.Response(
                    status_code=error.status,
                    headers=[*headers.items(), ("connection", "close")],
                ),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ]
            for event in sent:
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
