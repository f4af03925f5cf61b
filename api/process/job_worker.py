"""`forescribe worker`: one process with one model that takes jobs from the queue, and no clients.

    run_worker(settings)                       # until SIGINT or SIGTERM
    run_worker(settings, listening)            # with /health, /ready and /metrics on a bound socket

At the signal it takes no more jobs and gives those that it has back to the queue; another process continues
them after their last finished group. Does not know routes.
"""

from __future__ import annotations

import socket

from forescribe.asr.errors import UsageError

from ..settings import Settings
from ..speech.serving import Serving
from ..worker_app import create_worker_app
from .idle import EndWhenIdle
from .server import OneProcess, configure_logs


def run_worker(
    settings: Settings, listening: socket.socket | None = None, idle_s: float | None = None
) -> None:
    """Work until a signal or a failure or, with `idle_s`, until no job was open for so long. Raises
    UsageError if the jobs' store cannot be used."""
    configure_logs()
    serving = Serving.of(settings)
    process = OneProcess(settings, serving)
    jobs = process.jobs()
    assert jobs is not None, "checked by `worker_settings`"
    app = create_worker_app(settings, serving, jobs, failed=process.fail)
    if idle_s is not None:
        EndWhenIdle(serving, lambda: jobs.store.jobs.backlog()[0], process.finish, idle_s).start()
    process.run(app, [] if listening is None else [listening])


def worker_settings(settings: Settings) -> Settings:
    """The settings as a worker needs them: no load balancer has to notice its end. Raises UsageError for
    those that make no sense for it."""
    if settings.database_url is None or settings.database_url.startswith("sqlite"):
        raise UsageError(
            "a worker takes jobs from a database that a service shares with it, and SQLite is a file of "
            "one machine: give --database postgresql://user:password@host/name (database_url)"
        )
    if not settings.jobs:
        raise UsageError("a worker does jobs, and jobs = false: set jobs = true")
    if settings.front_end:
        raise UsageError("front_end is for `forescribe serve`: a worker loads the model")
    if settings.workers != 1:
        raise UsageError(
            "a worker is one process for one device: start one for each instead of workers"
        )
    return settings.model_copy(update={"announce_s": 0.0, "text_model": None})
