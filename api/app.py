"""The applications: routes, middleware, models and jobs, composed.

    app = create_app(load())                            # the service, for uvicorn or a test client
    app = create_app(settings, serving)                 # with the caller's own engine
    app = create_worker_app(settings, serving, jobs)    # `forescribe worker`

A worker takes its work from the queue and has the routes of operators only: `/health`, `/ready` and
`/metrics` answer without a key, because the port is the operators' own and reveals counts only; it is not
opened unless it is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, FastAPI
from starlette.middleware.cors import CORSMiddleware

from forescribe.asr.errors import UsageError, how_to_install

from .access.keys import Keyring
from .access.limits import Pace
from .dependencies import browser_caller, caller
from .http import errors
from .http.errors import RequestId
from .http.openapi import describe
from .http.origins import EXPOSED, HostNames, OriginGuard
from .process import Engine, Failure, Watchdog, exit_failed, exit_hung, log_unexpected
from .realtime.streams import Streams
from .routers import asr_webservice, audio, endpoints, operations, page, realtime, text
from .routers.operations import Readiness
from .settings import Settings
from .speech.serving import Serving
from .telemetry import Tracing
from .text.serving import TextServing

if TYPE_CHECKING:
    from .jobs.service import Jobs


def create_app(
    settings: Settings,
    serving: Serving | None = None,
    jobs: Jobs | None = None,
    *,
    hung: Callable[[], None] = exit_hung,
    failed: Callable[[Failure], None] = exit_failed,
) -> FastAPI:
    """Create the service.

    Models are loaded in their own threads once the application has started. Without `jobs` there are no
    job routes. `hung` is called if a model's round does not end,
    `failed` if a model cannot be loaded; both end the process, which its supervisor restarts.
    """
    engine = serving or Serving.of(settings)
    text_serving = TextServing.of(settings)
    engine.life.failed = text_serving.life.failed = failed
    engine.thread.wait_for(text_serving.thread)
    text_serving.thread.wait_for(engine.thread)
    starts: list[Callable[[], None]] = []
    stops: list[Callable[[], None]] = []
    if jobs is not None:
        engine.life.closing.append(jobs.hand_over)
        starts, stops = [jobs.start], [jobs.stop]
    engines = (engine,) if text_serving.life.state == "off" else (engine, text_serving)
    watchdog = Watchdog(engines, settings.stall_s, hung)

    lifespan = _lifespan(engines, watchdog, starts, stops, failed)
    app = _application(lifespan, engine.tracing)
    app.state.settings, app.state.serving, app.state.jobs = settings, engine, jobs
    app.state.keyring = Keyring(settings.api_keys)
    app.state.text_serving = text_serving
    streams = Streams(settings, engine)
    app.state.streams = streams
    engine.life.closing.append(streams.drain)
    app.state.readiness = Readiness(settings, engine, text_serving, jobs)
    text_serving.watch(engine.metrics)
    _add_middleware(app, settings, engine)
    errors.install(app)
    _include_routes(app, settings, jobs)
    describe(app)
    return app


def create_worker_app(
    settings: Settings,
    serving: Serving,
    jobs: Jobs,
    *,
    hung: Callable[[], None] = exit_hung,
    failed: Callable[[Failure], None] = exit_failed,
) -> FastAPI:
    """Create a worker. `hung` and `failed` are as for `create_app`."""
    serving.life.failed = failed
    serving.life.closing.append(jobs.hand_over)
    watchdog = Watchdog((serving,), settings.stall_s, hung)

    lifespan = _lifespan((serving,), watchdog, [jobs.start], [jobs.stop], failed)
    app = _application(lifespan, Tracing())
    app.state.settings, app.state.serving, app.state.jobs = settings, serving, jobs
    app.state.streams = None
    app.state.readiness = Readiness(settings, serving, TextServing.of(settings), jobs)
    app.add_middleware(RequestId, metrics=serving.metrics)
    errors.install(app)
    errors.install_database(app)
    app.include_router(operations.health_router)
    app.include_router(operations.metrics_router)
    return app


def _include_routes(app: FastAPI, settings: Settings, jobs: Jobs | None) -> None:
    app.include_router(operations.health_router)
    app.include_router(page.router)
    app.include_router(page.docs_router, dependencies=[Depends(browser_caller)])
    private = APIRouter(dependencies=[Depends(caller)])  # so no route here can omit the key
    if not settings.front_end:
        for module in (audio, endpoints, asr_webservice, realtime):
            private.include_router(module.router)
    for router in (operations.models_router, text.router, operations.metrics_router):
        private.include_router(router)
    if jobs is not None:
        from .routers import jobs as job_routes
        from .routers import uploads as upload_routes

        errors.install_database(app)
        for router in (job_routes.router, upload_routes.router):
            private.include_router(router)
    app.include_router(private)
    if not settings.front_end:
        app.include_router(realtime.socket_router)  # it checks keys itself


def _lifespan(
    engines: Sequence[Engine],
    watchdog: Watchdog,
    starts: Sequence[Callable[[], None]],
    stops: Sequence[Callable[[], None]],
    failed: Callable[[Failure], None],
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Models are loaded while the application starts. The first of them drains all requests at the end."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for engine in engines:
            engine.start()
        watchdog.start()
        try:
            await _start(failed, *starts)
            async with _wyoming(app.state.settings, app.state.streams, failed):
                yield
        finally:
            for stop in stops:
                await asyncio.to_thread(stop)
            for engine in engines:
                await engine.stop()
            serving: Serving = app.state.serving
            await asyncio.to_thread(serving.tracing.close)
            watchdog.stop()

    return lifespan


def _wyoming(
    settings: Settings, streams: Streams | None, failed: Callable[[Failure], None]
) -> AbstractAsyncContextManager[None]:
    """Serve Wyoming too, if the settings name an address and live streams are served, as a worker of jobs
    does not."""
    if settings.wyoming is None or streams is None:
        return nullcontext()
    try:
        from .wyoming import listening
    except ModuleNotFoundError as error:
        text = f"--wyoming needs {error.name}: {how_to_install('serve', 'wyoming')}"
        failed(Failure.of("Wyoming", UsageError(text)))
        return nullcontext()
    return listening(settings, streams, failed)


def _application(
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]], tracing: Tracing
) -> FastAPI:
    """An application without FastAPI's own pages."""
    return FastAPI(
        title="forescribe",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        telemetry=tracing.of_requests(),
    )


async def _start(failed: Callable[[Failure], None], *starts: Callable[[], None]) -> None:
    """Start what needs the jobs' store. Without its database or its disk the process ends; no job is lost."""
    try:
        for start in starts:
            await asyncio.to_thread(start)
    except Exception as error:
        log_unexpected(error)
        failed(Failure.of("the jobs' store", error))


def _add_middleware(app: FastAPI, settings: Settings, serving: Serving) -> None:
    """Add the layers in front of every route, the innermost first."""
    app.add_middleware(Pace)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=errors.METHODS,
            allow_headers=["*"],
            expose_headers=EXPOSED,
            allow_private_network=True,
        )
    names = HostNames.of(settings.host, settings.allowed_hosts, keyed=bool(settings.api_keys))
    app.add_middleware(
        OriginGuard,
        names=names,
        origins=settings.allowed_origins,
        refused=serving.metrics.refused,
    )
    app.add_middleware(RequestId, metrics=serving.metrics)
