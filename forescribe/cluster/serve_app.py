"""The service as an application of Ray Serve: the same routes, built in each replica.

    serve run forescribe.cluster:app model=large
    serve deploy deploy/ray/forescribe.yaml

An application holds locks and threads and cannot be sent to a replica, so what is sent is what it is made
of: the settings that were given. A replica is ready when its model is loaded; it drains when Serve ends
its lifespan, as no signal reaches it. Knows nothing of routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from forescribe.asr.errors import UsageError
from forescribe.asr.installing import how_to_install

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve import Application

    from forescribe.api.process.models import Failure
    from forescribe.api.settings import Settings
    from forescribe.api.speech.serving import Serving

NAME = "forescribe"

STREAMS = 64
"""Requests of a replica beside uploads and transcriptions: event streams, health, the page."""

GRACE_S = 15.0
"""Seconds after draining for the last answers and the model's thread."""

LOAD_POLL_S = 0.1


def application(given: Mapping[str, Any]) -> Application:
    """The application for settings of the environment and `given`. Raises UsageError."""
    try:
        from ray import serve
    except ModuleNotFoundError as error:
        raise UsageError(
            f"forescribe.cluster:app needs Ray Serve: {how_to_install('cluster')}"
        ) from error

    options = deployment_options(settings_of(given))
    bound: Application = serve.deployment(**options)(serve.ingress()(SpeechReplica)).bind(
        dict(given)
    )
    return bound


def settings_of(given: Mapping[str, Any]) -> Settings:
    """The settings of a replica, to which other machines send requests. Raises UsageError for settings
    that are wrong, for missing keys, and for jobs that a replica would lose."""
    from forescribe.api.settings import load

    fixed = {"host", "port", "workers"} & given.keys()
    if fixed:
        raise UsageError(f"{', '.join(sorted(fixed))}: Serve decides this; leave it out")
    settings = load(**{**given, "host": "0.0.0.0"})
    if settings.jobs:
        _check_jobs(settings)
    return settings


def _check_jobs(settings: Settings) -> None:
    """Replicas move from machine to machine: what one keeps on its own disk is lost."""
    if not (settings.database_url or "").startswith("postgresql"):
        raise UsageError(
            "jobs of replicas need a database that all of them reach: set database_url=postgresql://..., or "
            "jobs=false"
        )
    if settings.blobs_url is None:
        raise UsageError(
            "jobs of replicas need object storage: set blobs_url=s3://..., or jobs=false"
        )


def deployment_options(settings: Settings) -> dict[str, Any]:
    """Options with which our own limits speak first: Serve lets in what admission refuses with 429, and
    waits for longer than draining takes. A configuration file may replace them."""
    resources = {
        "cuda": {"num_gpus": 1},
        "hpu": {"resources": {"HPU": 1}},
    }
    return {
        "name": NAME,
        "max_ongoing_requests": settings.max_requests + settings.max_uploads + STREAMS,
        "graceful_shutdown_timeout_s": settings.drain_s + GRACE_S,
        "graceful_shutdown_wait_loop_s": 0.5,
        "health_check_period_s": 5.0,
        "health_check_timeout_s": 30.0,
        "ray_actor_options": resources.get(settings.device.split(":")[0], {}),
    }


class SpeechReplica:
    """A replica. `given` are the settings besides those of the environment."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.serving: Serving | None = None

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve in the replica, once."""
        settings = settings_of(self.given)
        if settings.jobs:  # drafts and copies of audio belong to one process
            own = settings.data_folder / replica_id()
            settings = settings.model_copy(update={"data_dir": own})
        app, self.serving = replica_app(settings)
        return app

    def check_health(self) -> None:
        """Raises RuntimeError for a replica that answers no more; Serve replaces it."""
        state = None if self.serving is None else self.serving.state
        if state in ("broken", "failed"):
            raise RuntimeError(f"the speech model is {state}")


def replica_id() -> str:
    """What tells this replica apart from others, on this machine too."""
    from ray import serve

    return str(serve.get_replica_context().replica_id.unique_id)


def replica_app(settings: Settings) -> tuple[FastAPI, Serving]:
    """The application of one replica. Its lifespan begins when the model is loaded, and raises if it
    cannot be."""
    from forescribe.api.app import create_app
    from forescribe.api.process.lifecycle import exit_failed
    from forescribe.api.speech.serving import Serving

    serving = Serving.of(settings)
    reasons: list[Failure] = []
    ready = False

    def failed(failure: Failure) -> None:
        if ready:  # Serve replaces the process
            exit_failed(failure)
        reasons.append(failure)

    jobs = None
    if settings.jobs:
        from forescribe.api.jobs.service import Jobs

        jobs = Jobs.open(settings, serving)
    app = create_app(settings, serving, jobs, failed=failed)
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(application: FastAPI) -> AsyncIterator[Any]:
        nonlocal ready
        async with inner(application) as state:
            while serving.state == "loading" and not reasons:
                await asyncio.sleep(LOAD_POLL_S)
            if reasons:
                raise RuntimeError(reasons[0].line)
            ready = True
            yield state

    app.router.lifespan_context = lifespan
    return app, serving
