"""uvicorn's protocol for sockets, for `uvicorn.Config(ws=SocketProtocol)`: what it leaves open for a service.

- At the end of the process uvicorn closes sockets at once. Here the application hears of it, as a disconnect
  with code 1012, ends its work and closes them itself.
- A client that reads nothing keeps a connection alive for as long as it likes, because what was written has
  to go out first. Here the connection is aborted `LINGER_S` after the application has left it.
- A client whose messages are not read at present is not late with its answers to pings: they are behind the
  messages.
- Its log lines have addresses of clients and paths with queries, which no log here has.

Does not know the application.
"""

from __future__ import annotations

import logging

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

LINGER_S = 5.0

PING_S, PONG_S = 20.0, 40.0
"""Between pings, and for the answer: a client that is gone is noticed after a minute."""

log = logging.getLogger("forescribe.api.sockets")
log.setLevel(logging.WARNING)
# uvicorn says so of every socket that was refused with an answer, which is no fault.
log.addFilter(lambda record: "without completing handshake" not in record.getMessage())


class SocketProtocol(WebSocketsSansIOProtocol):
    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.logger = self.conn.logger = log

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
