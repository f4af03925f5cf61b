"""One process: uvicorn over one engine with the handling of signals, as a service or as a worker of jobs.

At the signal a service drains; a worker takes no more jobs and gives those that it has back to the queue, and
another process continues them after their last finished group. `api.workers` supervises several services, one
for each device. Does not know routes.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import uvicorn
from sqlalchemy.exc import DBAPIError

from forescribe.asr.errors import CapacityError, UsageError, how_to_install

from .app import create_app, create_worker_app
from .http.protocols import PING_S, PONG_S, HttpProtocol, SocketProtocol
from .process import Failure, Life, share_heaps
from .realtime.connection import MAX_MESSAGE
from .settings import Settings
from .speech.serving import Serving

if TYPE_CHECKING:
    from fastapi import FastAPI

    from .jobs.service import Jobs


GRACE_S = 5
"""Seconds for the last answers after decoding has ended."""

POLL_S = 1.0
"""How often a worker looks whether jobs are open, if it is to end without any."""


def serve(settings: Settings, sockets: list[socket.socket]) -> None:
    """Run one process with one engine, on bound sockets."""
    _run(settings, create_app, sockets)


def run_worker(
    settings: Settings, listening: socket.socket | None = None, idle_s: float | None = None
) -> None:
    """Work until a signal or a failure or, with `idle_s`, until no job was open for so long. Raises
    UsageError if the jobs' store cannot be used."""
    _run(settings, create_worker_app, [] if listening is None else [listening], idle_s)


def worker_settings(settings: Settings) -> Settings:
    """The settings as a worker needs them: no load balancer has to notice its end. Raises UsageError for
    those that make no sense for it."""
    if settings.database_url is None or settings.database_url.startswith("sqlite"):
        raise UsageError(
            "a worker takes jobs from a database that a service shares with it, and SQLite is a file of "
            "one machine: give --database postgresql://user:password@host/name (database_url)"
        )
    if not settings.jobs or settings.front_end or settings.workers != 1:
        raise UsageError(
            "a worker is one process that loads the model and does jobs: it needs jobs = true, and neither "
            "front_end nor workers"
        )
    return settings.model_copy(update={"announce_s": 0.0, "text_model": None, "wyoming": None})


def configure_logs() -> None:
    """JSON lines on stderr."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    for name in ("httpx", "forescribe.api.jobs.database"):  # addresses; the end of a pool
        logging.getLogger(name).setLevel(logging.WARNING)


def die(sig: int) -> None:
    """End the process as the signal does by default."""
    signal.signal(sig, signal.SIG_DFL)
    os.kill(os.getpid(), sig)


class Server(uvicorn.Server):
    """Drains the engine when a signal arrives. uvicorn's own shutdown begins after all answers, when nothing
    is left to drain.

    SIGTERM is announced first (`announce_s`): the listening socket stays open and work is admitted, while
    `/ready` already says no. SIGINT, from a terminal, takes effect at once. A second signal of either kind
    ends the process immediately.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        serving: Serving,
        clock: Callable[[], float] = time.monotonic,
        die: Callable[[int], None] = die,
    ) -> None:
        super().__init__(config)
        self.serving, self.clock, self.die = serving, clock, die
        self.failure: Failure | None = None
        self._exit_s: float | None = None  # when the announcement ends

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._exit_s is not None:
            return self.die(sig)
        if sig == signal.SIGTERM:
            announce_s = self.serving.life.announce()
        else:
            announce_s = 0.0
            self.serving.life.drain()
        self._exit_s = self.clock() + announce_s
        if announce_s:
            self._captured_signals.append(sig)  # uvicorn raises it again after the shutdown
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if self._exit_s is not None and self.clock() >= self._exit_s:
            self.should_exit = True
        return await super().on_tick(counter)

    def finish(self) -> None:
        """Drain and shut down, as after a signal, with status 0. May be called from any thread."""
        self.serving.life.drain()
        self.should_exit = True

    def fail(self, failure: Failure) -> None:
        """Shut down, and exit with the failure's status. May be called from any thread."""
        self.failure = failure
        self.should_exit = True


def end_when_idle(
    life: Life,
    open_jobs: Callable[[], int],
    finish: Callable[[], None],
    idle_s: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Call `finish` once the model was ready and no job was open for `idle_s` seconds on end, for batch
    systems that pay by the hour."""
    idle_since_s = clock()
    while clock() - idle_since_s < idle_s:
        pause(POLL_S)
        try:
            idle = life.state == "ready" and open_jobs() == 0
        except DBAPIError:  # a database that is away is not empty
            idle = False
        if not idle:
            idle_since_s = clock()
    finish()


def _jobs(settings: Settings, serving: Serving) -> Jobs | None:
    """The durable jobs, unless they are disabled. Ends the process if their store is away; raises UsageError
    if it cannot be used."""
    if not settings.jobs:
        return None
    try:
        from .jobs.service import Jobs
    except ModuleNotFoundError as error:
        raise UsageError(
            f"jobs need {error.name}: {how_to_install('serve')}, or set jobs = false"
        ) from error
    try:
        return Jobs.open(settings, serving)
    except CapacityError as error:  # the database may come back, the disk may be cleared
        _end(Failure.of("the jobs' store", error))


def _run(
    settings: Settings,
    create: Callable[..., FastAPI],
    sockets: list[socket.socket],
    idle_s: float | None = None,
) -> None:
    """Serve on bound sockets until a signal or a failure ends it; on nothing, if there are no sockets."""
    configure_logs()
    share_heaps()  # before object storage begins its threads
    serving = Serving.of(settings)
    jobs = _jobs(settings, serving)

    def failed(failure: Failure) -> None:
        server.fail(failure)

    app = create(settings, serving, jobs, failed=failed)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        access_log=False,  # it logs paths and addresses
        log_config=None,
        http=HttpProtocol,
        ws=SocketProtocol,
        ws_max_size=MAX_MESSAGE,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PONG_S,
        server_header=False,
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
        timeout_graceful_shutdown=math.ceil(settings.drain_s) + GRACE_S,
    )
    server = Server(config, serving)
    if idle_s is not None and jobs is not None:
        open_jobs = jobs.store.jobs.backlog
        act = partial(end_when_idle, serving.life, lambda: open_jobs()[0], server.finish, idle_s)
        threading.Thread(target=act, name="idle", daemon=True).start()
    server.run(sockets)
    if server.failure is not None:
        _end(server.failure)


def _end(failure: Failure) -> NoReturn:
    sys.stderr.write(f"forescribe: {failure.line}\n")
    sys.exit(failure.status)
