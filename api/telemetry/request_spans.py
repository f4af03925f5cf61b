"""The span of a request, around everything that is done for it.

A `traceparent` of the client is continued, so its own trace shows what happened here. Probes and metrics are
not traced. Does not know what routes do.
"""

from __future__ import annotations

from fastapi.telemetry import TelemetryConfig
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .tracing import Tracing, valid

UNTRACED = frozenset({"/health", "/ready", "/metrics"})
UNKNOWN = "unknown"

NO_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""For FastAPI's own telemetry, which records the messages of exceptions: they may contain anything."""


class RequestSpans:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self.app, self.tracing = app, tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNTRACED:
            return await self.app(scope, receive, send)
        method = scope["method"]
        parent = valid(Headers(scope=scope).get("traceparent"))
        with self.tracing.span(
            method, parent=parent, server=True, http_request_method=method
        ) as span:

            async def send_and_note(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set(http_response_status_code=message["status"])
                    if message["status"] >= 500:
                        span.fail(str(message["status"]))
                await send(message)

            try:
                await self.app(scope, receive, send_and_note)
            finally:
                # The route, never the path, which may contain anything.
                route = getattr(scope.get("route"), "path", UNKNOWN)
                span.set(http_route=route)
                span.rename(f"{method} {route}")
