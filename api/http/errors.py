"""Errors and log lines of requests: the answer for every exception, and the outermost layer.

All answers have one format (`api.errors`), except those of the routes with contracts of others. A request id
is the client's own if it is a plain word, or else a new one; it is on every answer.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forescribe.asr.errors import ForescribeError

from ..errors import ApiError, invalid, refusal
from ..telemetry import CURRENT, UNLOGGED, Metrics, report, report_fault
from ..wording import message, nearest, place

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

HEADER = "x-request-id"

HEADERS = {"Cross-Origin-Resource-Policy": "same-origin", "X-Content-Type-Options": "nosniff"}
"""On every answer: pages of other origins cannot embed it, and browsers do not guess its type."""

WORD = re.compile(r"[A-Za-z0-9._-]{1,128}")

UNKNOWN = "unknown"
"""The route of a request that has none."""

_CODES = {401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed"}


def install(app: FastAPI) -> None:
    """Install the handlers for all exceptions but those of the database."""
    app.add_exception_handler(ApiError, _known_error)
    app.add_exception_handler(ForescribeError, _known_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _gone)


def install_database(app: FastAPI) -> None:
    """Install the handler for database errors, if there are jobs."""
    from sqlalchemy.exc import DBAPIError

    async def answer(request: Request, error: Exception) -> Response:
        """503 if the database is away, so that clients retry. Other database errors are faults."""
        assert isinstance(error, DBAPIError)
        if not await asyncio.to_thread(request.app.state.jobs.store.database.lost, error):
            raise error
        text = "the jobs' database cannot be reached; try again"
        return _answer(request, ApiError("not_ready", text))

    app.add_exception_handler(DBAPIError, answer)


class RequestId:
    """ASGI middleware: the request's id, its log line, and an answer for errors that nothing else handles.
    Routes find the id in `state.request_id`. Sockets get an id only: they log their own sessions."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if WORD.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = request_id
        CURRENT.set(request_id)
        if scope["type"] == "websocket":
            return await self.app(scope, receive, _accepting(send, request_id))
        began, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[HEADER] = request_id
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception as error:
            report_fault(error, request_id=request_id)
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


def _accepting(send: Send, request_id: str) -> Send:
    """Adds the id to the answer that opens a socket or refuses it."""

    async def send_with_id(message: Message) -> None:
        if message["type"] in ("websocket.accept", "websocket.http.response.start"):
            headers = [*message.get("headers", ()), (HEADER.encode(), request_id.encode())]
            message = {**message, "headers": headers}
        await send(message)

    return send_with_id


def _answer(request: Request, error: ApiError) -> Response:
    request.app.state.serving.metrics.refused(error.code)
    return refusal(request.url.path, error)


async def _known_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError | ForescribeError)
    return _answer(request, error if isinstance(error, ApiError) else ApiError.of(error))


async def _invalid(request: Request, error: Exception) -> Response:
    """Answer 400, not FastAPI's 422, with the first invalid field."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = place(first["loc"][1:])  # behind `query`, `path` or `header`
    return _answer(request, invalid(param, message(first)))


async def _http_error(request: Request, error: Exception) -> Response:
    """Errors of the framework: an unknown route, a wrong method, a body that cannot be read."""
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "invalid_value")
    text = f"{request.method} {request.url.path!r}: {error.detail}"
    if error.status_code == 404:
        known = (path for path in request.app.openapi()["paths"] if "{" not in path)
        text += nearest(request.url.path[:100], known, 0.8)
    response = _answer(request, ApiError(code, text))
    response.headers.update(error.headers or {})
    return response


async def _gone(request: Request, error: Exception) -> Response:
    """The client has left; the status is for the log (nginx uses the same)."""
    return Response(status_code=499)
