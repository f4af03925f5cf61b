"""The application: routes, errors and the engine's life, put together.

app = create_app(load())                    # for uvicorn, or a test in memory
app = create_app(settings, serving)         # with an engine of the caller's own
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from api.dependencies import caller
from api.described import describe
from api.errors import ApiError
from api.keys import Keyring
from api.requestid import RequestId
from api.routers import audio, endpoints, health, metrics, models, page, text
from api.serving import Serving
from api.settings import Settings
from api.text.serving import TextServing
from api.watchdog import Watchdog, leave
from asr.errors import ForescribeError

if TYPE_CHECKING:
    from api.jobs.service import Jobs

_CODES = {404: "not_found", 405: "method_not_allowed"}


def create_app(
    settings: Settings,
    serving: Serving | None = None,
    jobs: Jobs | None = None,
    *,
    hung: Callable[[], None] = leave,
) -> FastAPI:
    """The service. Loading begins when the application starts and goes on beside it. Without `jobs`
    their routes are not there. `hung` is called once a model's round does not end."""
    engine = serving or Serving.of(settings)
    texting = TextServing.of(settings)
    watchdog = Watchdog((engine, texting), settings.stall_s, hung)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        texting.start()
        watchdog.start()
        try:
            if jobs is not None:
                await asyncio.to_thread(jobs.start)
            yield
        finally:
            if jobs is not None:
                await asyncio.to_thread(jobs.stop)
            await engine.stop()  # which waits for all that is inside, texts too
            await texting.stop()
            watchdog.stop()

    app = FastAPI(title="forescribe", lifespan=lifespan, redoc_url=None)
    app.state.settings, app.state.serving, app.state.jobs = settings, engine, jobs
    app.state.keyring = Keyring(settings.api_keys)
    app.state.texting = texting
    texting.watched_by(engine.metrics)
    app.add_middleware(RequestId, metrics=engine.metrics)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(ForescribeError, _package_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.include_router(health.router)
    app.include_router(page.router)
    private = APIRouter(dependencies=[Depends(caller)])  # no route here can forget the key
    for module in (audio, models, text, endpoints, metrics):
        private.include_router(module.router)
    if jobs is not None:
        from sqlalchemy.exc import DBAPIError

        from api.routers import jobs as job_routes
        from api.routers import uploads as upload_routes

        app.add_exception_handler(DBAPIError, _database_error)
        private.include_router(job_routes.router)
        private.include_router(upload_routes.router)
    app.include_router(private)
    describe(app)
    return app


def _answer(request: Request, error: ApiError) -> Response:
    """OpenAI's body; the ancestor's on its own routes."""
    request.app.state.serving.metrics.refused(error.code)
    if request.url.path in endpoints.PATHS:
        return JSONResponse({"detail": error.message}, error.status, error.headers())
    return error.response()


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _answer(request, error)


async def _package_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ForescribeError)
    return _answer(request, ApiError.of(error))


async def _invalid(request: Request, error: Exception) -> Response:
    """FastAPI's 422 is a 400 here, with the first culprit."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    message = f"{first['loc'][-1]}: {first['msg']}"
    return _answer(request, ApiError("invalid_value", message, param=str(first["loc"][-1])))


async def _http_error(request: Request, error: Exception) -> Response:
    """What the framework itself refuses: an unknown route, a wrong method, a body it cannot read."""
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "invalid_value")
    response = _answer(request, ApiError(code, f"{request.method}: {error.detail}"))
    response.headers.update(error.headers or {})
    return response


async def _database_error(request: Request, error: Exception) -> Response:
    """A database that has gone away comes back: 503, and clients try again. Its other faults are ours."""
    if not await asyncio.to_thread(request.app.state.jobs.store.lost, error):
        raise error
    return _answer(
        request, ApiError("not_ready", "the jobs' database cannot be reached; try again")
    )


async def _gone(request: Request, error: Exception) -> Response:
    """Nobody will read this; the status is for the log (nginx has made it known)."""
    return Response(status_code=499)
