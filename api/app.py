"""The application: routes, errors and the engine's life, put together.

app = create_app(load())                    # for uvicorn, or a test in memory
app = create_app(settings, serving)         # with an engine of the caller's own
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, FastAPI
from starlette.middleware.cors import CORSMiddleware

from .access.keys import Keyring
from .dependencies import caller, reader
from .http import exception_handlers
from .http.openapi import describe
from .http.origins import EXPOSED, OriginGuard
from .http.pace import Pace
from .http.request_id import RequestId
from .process.model_loads import Failure, told
from .process.readiness import Readiness
from .process.watchdog import Watchdog, leave, leave_for
from .routers import audio, docs, endpoints, health, metrics, models, page, text
from .settings import Settings
from .speech.serving import Serving
from .text.text_serving import TextServing

if TYPE_CHECKING:
    from .jobs.service import Jobs


def create_app(
    settings: Settings,
    serving: Serving | None = None,
    jobs: Jobs | None = None,
    *,
    hung: Callable[[], None] = leave,
    failed: Callable[[Failure], None] = leave_for,
) -> FastAPI:
    """The service. Loading begins when the application starts and goes on beside it. Without `jobs`
    their routes are not there. `hung` is called once a model's round does not end, `failed` where a model
    cannot be loaded; both end the process, for whoever started it to start the next."""
    engine = serving or Serving.of(settings)
    texting = TextServing.of(settings)
    engine.failed = texting.failed = failed
    texting.joined = lambda: engine.joined()
    engine.others, texting.others = (texting.loaded,), (engine.loaded,)
    if jobs is not None:
        engine.ending.append(jobs.ending)
        engine.closing.append(jobs.hand_over)
    watchdog = Watchdog((engine, texting), settings.stall_s, hung)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        texting.start()
        watchdog.start()
        try:
            if jobs is not None:
                try:
                    await asyncio.to_thread(jobs.start)
                except Exception as error:  # the database, or the disk: nothing is lost
                    told(error)
                    failed(Failure.of("the jobs' store", error))
            yield
        finally:
            if jobs is not None:
                await asyncio.to_thread(jobs.stop)
            await engine.stop()  # which waits for all that is inside, texts too
            await texting.stop()
            watchdog.stop()

    app = FastAPI(
        title="forescribe", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None
    )
    app.state.settings, app.state.serving, app.state.jobs = settings, engine, jobs
    app.state.keyring = Keyring(settings.api_keys)
    app.state.texting = texting
    app.state.readiness = Readiness(settings, engine, texting, jobs)
    texting.watched_by(engine.metrics)
    _guard(app, settings, engine)
    exception_handlers.install(app)
    app.include_router(health.router)
    app.include_router(page.router)
    app.include_router(docs.router, dependencies=[Depends(reader)])
    private = APIRouter(dependencies=[Depends(caller)])  # no route here can forget the key
    for module in (audio, models, text, endpoints, metrics):
        private.include_router(module.router)
    if jobs is not None:
        from .routers import jobs as job_routes
        from .routers import uploads as upload_routes

        exception_handlers.install_database(app)
        private.include_router(job_routes.router)
        private.include_router(upload_routes.router)
    app.include_router(private)
    describe(app)
    return app


def _guard(app: FastAPI, settings: Settings, serving: Serving) -> None:
    """What stands before every route, the innermost first."""
    app.add_middleware(Pace, idle_s=settings.upload_idle_s, rate=settings.min_upload_rate)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=exception_handlers.METHODS,
            allow_headers=["*"],
            expose_headers=EXPOSED,
            allow_private_network=True,
        )
    app.add_middleware(OriginGuard, settings=settings, metrics=serving.metrics)
    app.add_middleware(RequestId, metrics=serving.metrics)
