"""The application of `forescribe worker`: jobs and a model, with no routes but those of operators.

    app = create_worker_app(settings, serving, jobs)

`/health`, `/ready` and `/metrics` answer without a key, because the port is the operators' own and reveals
counts only; it is not opened unless it is asked for. Work comes from the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI

from .http import exception_handlers
from .http.request_id import RequestId
from .process.model_loads import Failure, log_unexpected
from .process.readiness import Readiness
from .process.watchdog import Watchdog, exit_failed, exit_hung
from .routers import health, metrics
from .settings import Settings
from .speech.serving import Serving
from .telemetry.request_spans import NO_TELEMETRY
from .text.text_serving import TextServing

if TYPE_CHECKING:
    from .jobs.service import Jobs


def create_worker_app(
    settings: Settings,
    serving: Serving,
    jobs: Jobs,
    *,
    hung: Callable[[], None] = exit_hung,
    failed: Callable[[Failure], None] = exit_failed,
) -> FastAPI:
    """Create a worker. `hung` and `failed` are as for `create_app`."""
    serving.failed = failed
    serving.ending.append(jobs.ending)
    serving.closing.append(jobs.hand_over)
    watchdog = Watchdog((serving,), settings.stall_s, hung)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        serving.start()
        watchdog.start()
        try:
            try:
                await asyncio.to_thread(jobs.start)
            except Exception as error:  # the database or the disk: no job is lost
                log_unexpected(error)
                failed(Failure.of("the jobs' store", error))
            yield
        finally:
            await asyncio.to_thread(jobs.stop)
            await serving.stop()
            await asyncio.to_thread(serving.tracing.close)
            watchdog.stop()

    app = FastAPI(
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        telemetry=NO_TELEMETRY,
    )
    app.state.settings, app.state.serving, app.state.jobs = settings, serving, jobs
    app.state.readiness = Readiness(settings, serving, TextServing.of(settings), jobs)
    app.add_middleware(RequestId, metrics=serving.metrics)
    exception_handlers.install(app)
    exception_handlers.install_database(app)
    app.include_router(health.router)
    app.include_router(metrics.router)
    return app
