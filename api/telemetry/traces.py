"""Traces: whether they are on, the span of a request, and the places at which the traces of jobs continue.

    serving.tracing = traces.of(settings)

OpenTelemetry's SDK is imported only where the setting or its own variables ask for it. A `traceparent` of a
client is continued, so its own trace shows what happened here; probes and metrics are not traced. The places
of jobs and batches are kept in the job database, so that the process which does the work continues the trace
of the one that accepted it; rows are written only while traces are on. Does not know what routes and jobs do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import sqlalchemy as sa
from fastapi.telemetry import TelemetryConfig
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forescribe.asr.errors import UsageError
from forescribe.asr.installing import how_to_install

from ..http.errors import UNKNOWN, UNLOGGED
from ..jobs.database import Database, Tx
from ..jobs.tables import META
from ..settings import Settings
from .tracing import PLACE, Tracing, valid

NO_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""For FastAPI's own telemetry, which records the messages of exceptions: they may contain anything."""

MAX_KNOWN = 10_000
"""Places that are kept in memory."""

TRACES = sa.Table(
    "forescribe_traces",
    META,
    sa.Column("id", sa.String, primary_key=True),  # of a job or a batch
    sa.Column("place", sa.String, nullable=False),  # W3C's traceparent
    sa.Column("created_at", sa.Float, nullable=False),
)


def of(settings: Settings) -> Tracing:
    """The tracing that the settings and the environment ask for. Raises UsageError if it is not installed
    or its exporter is unknown."""
    if not configured(settings):
        return Tracing()
    try:
        from .otel import traces
    except ModuleNotFoundError as error:
        raise UsageError(
            f"traces need {error.name}: {how_to_install('serve', 'otel')}, "
            "or unset traces and OTEL_EXPORTER_OTLP_ENDPOINT"
        ) from error
    return traces()


def configured(settings: Settings, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether traces are to be sent: by the setting `traces`, or OpenTelemetry's own variables."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter:
        return exporter != "none"
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return settings.traces or any(environment.get(name) for name in endpoints)


class RequestSpans:
    """ASGI middleware: the span of a request, around everything that is done for it."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self.app, self.tracing = app, tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNLOGGED:
            return await self.app(scope, receive, send)
        method = scope["method"]
        parent = valid(Headers(scope=scope).get("traceparent"))
        with self.tracing.span(
            method, parent=parent, server=True, http_request_method=method
        ) as span:

            async def send_and_note(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set(http_response_status_code=message["status"])
                    if message["status"] >= 500:
                        span.fail(str(message["status"]))
                await send(message)

            try:
                await self.app(scope, receive, send_and_note)
            finally:
                # The route, never the path, which may contain anything.
                route = getattr(scope.get("route"), "path", UNKNOWN)
                span.set(http_route=route)
                span.rename(f"{method} {route}")


class JobTraces:
    """The places of one database; `tracing` says whether there are any."""

    def __init__(self, database: Database, tracing: Tracing) -> None:
        self._database, self.tracing = database, tracing
        self._known: dict[str, str | None] = {}

    def create(self) -> None:
        """Create the table, if it is missing."""
        if self.tracing.active:
            self._database.create(TRACES)

    def keep(self, tx: Tx, id: str, now: float) -> None:
        """Keep the place of the work in progress for a job that is being created."""
        place = PLACE.get()
        if self.tracing.active and place is not None:
            tx.execute(sa.insert(TRACES).values(id=id, place=place, created_at=now))

    def place(self, id: str) -> str | None:
        """Where a job's trace is continued; None if it has none."""
        if not self.tracing.active:
            return None
        if id not in self._known:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            with self._database.engine.connect() as tx:
                found = tx.execute(sa.select(TRACES.c.place).where(TRACES.c.id == id))
                self._known[id] = found.scalar_one_or_none()
        return self._known[id]

    def delete_before(self, when: float) -> None:
        if self.tracing.active:
            with self._database.transaction() as tx:
                tx.execute(sa.delete(TRACES).where(TRACES.c.created_at < when))
