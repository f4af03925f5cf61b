"""The outermost layer: a request's id, its log line, and an answer for errors that nothing else handles.

A request id is the client's own if it is a plain word, or else a new one; it is on every answer. The log
contains no transcript text, file names or keys. An exception's message may contain any of them, so its type
and place are logged, not its message.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
import traceback
from contextvars import ContextVar
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ApiError
from ..metrics import Metrics

HEADER = "x-request-id"
UNKNOWN = "unknown"
UNLOGGED = frozenset({"/health", "/ready", "/metrics"})
"""Routes that are requested every few seconds by machines: they are counted, but not logged."""

WORD = re.compile(r"[A-Za-z0-9._-]{1,128}")

log = logging.getLogger("forescribe.api")

CURRENT: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the current request, for log lines about it."""


class RequestId:
    """ASGI middleware; routes find the id in `state.request_id`."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if WORD.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = request_id
        CURRENT.set(request_id)
        began, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception as error:
            report("fault", request_id=request_id, error=type(error).__name__, place=_place(error))
            if status:
                raise  # half of the answer is sent: the server has to close the connection
            failed = ApiError("internal_error", "the server failed; the fault is logged")
            await failed.response()(scope, receive, send_with_id)
        finally:
            # The route, never the path, which may contain anything.
            route = getattr(scope.get("route"), "path", UNKNOWN)
            wall_s = time.perf_counter() - began
            self.metrics.answered(route, status, wall_s)
            if route not in UNLOGGED:
                report(
                    "request",
                    request_id=request_id,
                    method=scope["method"],
                    route=route,
                    status=status,
                    wall_s=round(wall_s, 4),
                )


def report(event: str, **facts: object) -> None:
    """Write a log line."""
    log.info(json.dumps({"event": event, **facts}))


def _place(error: BaseException) -> str:
    """The file and line that raised the error."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
