"""The outermost layer: a request's id, its one line in the log, and a body for what nobody caught.

A request id is the client's own where it is a plain word, else a new one; it is on every answer.
The log has no transcript text, no file name and no key. An exception's message may hold any of
these, so its type and its place are logged, not its words.
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
PROBED = frozenset({"/health", "/ready", "/metrics"})
"""Asked every few seconds by machines: counted like all routes, but no line of the log is worth it."""

WORD = re.compile(r"[A-Za-z0-9._-]{1,128}")

log = logging.getLogger("forescribe.api")

CURRENT: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Of the request at hand, for whoever logs something of it."""


class RequestId:
    """ASGI middleware; `state.request_id` for the routes below."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        name = Headers(scope=scope).get(HEADER, "")
        name = name if WORD.fullmatch(name) else f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = name
        CURRENT.set(name)
        began, status = time.perf_counter(), 0

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = name
            await send(message)

        try:
            await self.app(scope, receive, named)
        except Exception as error:
            report("fault", request_id=name, error=type(error).__name__, place=_place(error))
            if status:
                raise  # half an answer is out: the server has to cut the connection
            failed = ApiError("internal_error", "the server failed; the fault is logged")
            await failed.response()(scope, receive, named)
        finally:
            # Never the path itself: it may hold anything.
            route = getattr(scope.get("route"), "path", UNKNOWN)
            wall_s = time.perf_counter() - began
            self.metrics.answered(route, status, wall_s)
            if route not in PROBED:
                report(
                    "request",
                    request_id=name,
                    method=scope["method"],
                    route=route,
                    status=status,
                    wall_s=round(wall_s, 4),
                )


def report(event: str, **facts: object) -> None:
    """A line of the log."""
    log.info(json.dumps({"event": event, **facts}))


def _place(error: BaseException) -> str:
    """File and line of our own code, or of whoever raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
