"""The server process: uvicorn with our log, over one engine.

Several processes, one for each device, are looked after by `api.workers`.
"""

from __future__ import annotations

import logging
import math
import socket
import sys
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from api.app import create_app
from api.protocol import Protocol
from api.serving import Serving
from api.settings import Settings
from asr.errors import UsageError

if TYPE_CHECKING:
    from api.forward import Worker
    from api.jobs.service import Jobs

GRACE_S = 5
"""For the last answers, once nothing is decoded any more."""


class Server(uvicorn.Server):
    """Tells the engine of the end at the signal. uvicorn's own shutdown begins when all answers are
    given, which would leave nothing to drain."""

    def __init__(self, config: uvicorn.Config, serving: Serving) -> None:
        super().__init__(config)
        self.serving = serving

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.serving.drain()
        super().handle_exit(sig, frame)


def run(settings: Settings) -> None:
    """Serves until it is told to stop (SIGINT, SIGTERM); then nothing comes in any more, and what is
    inside has `drain_s` to end. With several workers, this process only looks after them."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    if settings.workers == 1:
        return serve(settings)
    from api import workers

    workers.run(settings)


def serve(
    settings: Settings,
    sockets: list[socket.socket] | None = None,
    worker: Worker | None = None,
) -> None:
    """One process with one engine, on sockets that somebody has bound, or its own."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it writes addresses
    serving = Serving.of(settings)
    first = worker is None or worker.index == 0
    app = create_app(settings, serving, _jobs(settings, serving) if first else None)
    if worker is not None:
        from api.forward import Forward

        app.add_middleware(Forward, worker=worker, jobs=settings.jobs)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        access_log=False,  # it writes paths and addresses; ours has neither
        log_config=None,
        http=Protocol,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(settings.drain_s) + GRACE_S,
    )
    Server(config, serving).run(sockets)


def _jobs(settings: Settings, serving: Serving) -> Jobs | None:
    """Durable jobs, unless they are switched off. Raises UsageError where they cannot be kept."""
    if not settings.jobs:
        return None
    try:
        from api.jobs.service import Jobs
    except ModuleNotFoundError as error:
        raise UsageError(
            f"jobs need {error.name}: run `scripts/setup serve` in forescribe's folder, or set jobs = false"
        ) from error
    return Jobs.of(settings, serving)
