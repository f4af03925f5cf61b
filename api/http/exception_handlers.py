"""Exception handlers: the answer for every exception that can reach the application.

    install(app)

All answers have one format (`api.errors`), except those of the two routes with the Hugging Face contract.
"""

from __future__ import annotations

import asyncio

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from forescribe.asr.errors import ForescribeError

from ..errors import ApiError, refusal

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_CODES = {404: "not_found", 405: "method_not_allowed"}


def install(app: FastAPI) -> None:
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(ForescribeError, _package_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _gone)


def install_database(app: FastAPI) -> None:
    """Install the handler for database errors, if there are jobs."""
    from sqlalchemy.exc import DBAPIError

    app.add_exception_handler(DBAPIError, _database_error)


def allowed(app: FastAPI, scope: Scope) -> str:
    """The methods of all routes that match the path: each route knows only its own."""
    methods = [
        method
        for method in METHODS
        if any(
            route.matches({**scope, "method": method})[0] is Match.FULL
            for route in app.router.routes
        )
    ]
    return ", ".join(methods)


def _answer(request: Request, error: ApiError) -> Response:
    request.app.state.serving.metrics.refused(error.code)
    return refusal(request.url.path, error)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _answer(request, error)


async def _package_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ForescribeError)
    return _answer(request, ApiError.of(error))


async def _invalid(request: Request, error: Exception) -> Response:
    """Answer 400, not FastAPI's 422, with the first invalid field."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = str(first["loc"][-1])
    return _answer(request, ApiError("invalid_value", f"{param}: {first['msg']}", param=param))


async def _http_error(request: Request, error: Exception) -> Response:
    """Errors of the framework: an unknown route, a wrong method, a body that cannot be read."""
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "invalid_value")
    headers = dict(error.headers or {})
    text = str(error.detail)
    if code == "method_not_allowed":
        headers["Allow"] = allowed(request.app, request.scope)
        text = f"{request.method} is not a method of this route; it has {headers['Allow']}"
    elif code == "not_found" and error.detail == "Not Found":
        text = f"there is no route {request.url.path!r}"
    response = _answer(request, ApiError(code, text))
    response.headers.update(headers)
    return response


async def _database_error(request: Request, error: Exception) -> Response:
    """Answer 503 if the database is away, so that clients retry. Other database errors are faults."""
    from sqlalchemy.exc import DBAPIError

    assert isinstance(error, DBAPIError)
    if not await asyncio.to_thread(request.app.state.jobs.store.database.lost, error):
        raise error
    return _answer(
        request, ApiError("not_ready", "the jobs' database cannot be reached; try again")
    )


async def _gone(request: Request, error: Exception) -> Response:
    """The client has left; the status is for the log (nginx uses the same)."""
    return Response(status_code=499)
