"""The applications: routes, middleware, models and jobs, composed.

A worker takes its work from the queue and has the routes of operators only: `/health`, `/ready` and
`/metrics` answer without a key, because its port is not opened unless it is asked for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
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
from .http.origins import EXPOSED, OriginGuard
from .process import Failure, exit_failed, exit_hung, log_unexpected, watch
from .realtime.streams import Streams
from .routers import asr_webservice, audio, endpoints, operations, page, realtime, text
from .routers.operations import Readiness
from .settings import Settings
from .speech.serving import Serving
from .text.serving import TextServing

if TYPE_CHECKING:
    from .jobs.service import Jobs

THREADS = 32
"""That wait for disks and for what others share; asyncio's default is six where there are two processors."""


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
    serving = serving or Serving.of(settings)
    app = _application(settings, serving, jobs, failed, hung)
    app.state.keyring = Keyring(settings.api_keys)
    app.state.streams = Streams(settings, serving)
    serving.life.closing.append(app.state.streams.drain)
    app.state.text_serving.watch(serving.metrics)
    _add_middleware(app, settings, serving)
    errors.install(app)
    _include_routes(app, settings, jobs)
    describe(app)
    return app


def create_worker_app(
    settings: Settings,
    serving: Serving,
    jobs: Jobs,
    *,
    failed: Callable[[Failure], None] = exit_failed,
) -> FastAPI:
    """Create a worker. `failed` is as for `create_app`."""
    app = _application(settings, serving, jobs, failed)
    app.add_middleware(RequestId, metrics=serving.metrics)
    errors.install(app)
    errors.install_database(app)
    app.include_router(operations.health_router)
    app.include_router(operations.metrics_router)
    return app


def _application(
    settings: Settings,
    serving: Serving,
    jobs: Jobs | None,
    failed: Callable[[Failure], None],
    hung: Callable[[], None] = exit_hung,
) -> FastAPI:
    """An application without routes. Models are loaded while it starts; the first of them drains all requests
    at the end."""
    text_serving = TextServing(settings)
    serving.life.failed = text_serving.life.failed = failed
    serving.thread.wait_for(text_serving.thread)
    text_serving.thread.wait_for(serving.thread)
    if jobs is not None:
        serving.life.closing.append(jobs.hand_over)
    engines = (serving,) if text_serving.life.state == "off" else (serving, text_serving)
    stopped = threading.Event()
    watchdog = threading.Thread(
        target=watch, args=(engines, settings.stall_s, hung, stopped), name="watchdog", daemon=True
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="asyncio")
        asyncio.get_running_loop().set_default_executor(threads)
        for engine in engines:
            engine.start()
        watchdog.start()
        try:
            if jobs is not None:
                try:
                    await asyncio.to_thread(jobs.start)
                except Exception as error:  # without its database or its disk; no job is lost
                    log_unexpected(error)
                    failed(Failure.of("the jobs' store", error))
            async with _wyoming(settings, app.state.streams, failed):
                yield
        finally:
            if jobs is not None:
                await asyncio.to_thread(jobs.stop)
            for engine in engines:
                await engine.stop()
            await asyncio.to_thread(serving.tracing.close)
            stopped.set()

    app = FastAPI(
        title="forescribe",
        lifespan=lifespan,
        docs_url=None,  # nor FastAPI's other pages
        redoc_url=None,
        openapi_url=None,
        telemetry=serving.tracing.of_requests(),
    )
    app.state.settings, app.state.jobs, app.state.streams = settings, jobs, None
    app.state.serving, app.state.text_serving = serving, text_serving
    app.state.readiness = Readiness(settings, serving, text_serving, jobs)
    return app


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
    app.add_middleware(
        OriginGuard,
        host=settings.host,
        names=settings.allowed_hosts,
        origins=settings.allowed_origins,
        keyed=bool(settings.api_keys),
        refused=serving.metrics.refused,
    )
    app.add_middleware(RequestId, metrics=serving.metrics)
