"""Traces for OpenTelemetry: what a request or a job spends its time on, across processes.

    with tracing.span("diarize"):                      # a child of what is in progress in this context
        ...
    tracing.record("queue", began_ns, ended_ns)        # what is over already
    place()                                            # the place in the trace, as W3C's `traceparent`

FastAPI makes the span of a request itself and continues a client's trace; here are the spans of what is done
for it. They hold times, counts, codes and ids; never text, file names or keys. Unless it is configured,
OpenTelemetry's SDK is not imported. A place is text, so it is stored with a job, and the process that does
the job continues the trace. The provider is not the global one, so no library writes into these traces.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from forescribe.asr.decode.options import PhaseTimes
from forescribe.asr.errors import ForescribeError, UsageError, how_to_install

from .errors import ApiError
from .http.errors import UNLOGGED

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

Value = str | int | float | bool

SERVICE = "forescribe"

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Variables that switch traces on, as OTEL_TRACES_EXPORTER does."""

_FORMAT = TraceContextTextMapPropagator()


class Tracing:
    """Writes spans to a provider; without one it writes nothing."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self.provider, self.active = provider, provider is not None
        self._tracer = (provider or trace.NoOpTracerProvider()).get_tracer(SERVICE)
        if provider is not None:
            provider.add_span_processor(_without_address())

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Tracing:
        """As OpenTelemetry's variables say. Raises UsageError."""
        exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
        asked = exporter or any(environment.get(name) for name in ENDPOINTS)
        return cls(_provider(exporter or "otlp") if asked and exporter != "none" else None)

    @contextmanager
    def span(self, name: str, *, parent: str | None = None, **facts: Value) -> Iterator[None]:
        """Time a block, as a child of `parent` or else of what is in progress. An exception marks it as
        failed by its code or type; the message may hold anything."""
        context, attributes = _context(parent), _attributes(facts)
        with self._tracer.start_as_current_span(
            name,
            context,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                code = error.code if isinstance(error, ApiError | ForescribeError) else None
                span.set_status(trace.StatusCode.ERROR)
                span.set_attribute("error.type", code or type(error).__name__)
                raise

    def record(
        self, name: str, began_ns: int, ended_ns: int, *, parent: str | None = None, **facts: Value
    ) -> str | None:
        """Record what is over, in Unix nanoseconds, and return its place."""
        if not self.active:
            return None
        attributes = _attributes(facts)
        span = self._tracer.start_span(
            name, _context(parent), attributes=attributes, start_time=began_ns
        )
        span.end(max(began_ns, ended_ns))
        return place(span)

    def phases(self) -> PhaseTimes | None:
        """What the engine's thread writes times to; None if nobody reads them."""
        return PhaseTimes() if self.active else None

    def record_phases(self, phases: PhaseTimes | None, parent: str | None) -> None:
        """Record the phases of a recording."""
        for name, span in (phases.spans if phases is not None else {}).items():
            busy_s = round(span.busy_ns / 1e9, 6)
            self.record(name, span.began_ns, span.ended_ns, parent=parent, busy_s=busy_s)

    def of_requests(self) -> TelemetryConfig:
        """For FastAPI, without its logs, which hold the messages of exceptions."""
        return TelemetryConfig(
            tracer_provider=self.provider,
            tracing=self.active,
            metrics=False,
            logs=False,
            operation_spans=False,
            auto_configure=False,
            exclude=lambda scope: scope["path"] in UNLOGGED,
        )

    def close(self) -> None:
        """Send what has been recorded."""
        if self.provider is not None:
            self.provider.shutdown()


def place(span: trace.Span | None = None) -> str | None:
    """The place of a span, or of what is in progress; None where nothing is traced."""
    carrier: dict[str, str] = {}
    _FORMAT.inject(carrier, None if span is None else trace.set_span_in_context(span))
    return carrier.get("traceparent")


def _provider(name: str) -> TracerProvider:
    """With an exporter, `otlp` or `console`. Endpoint, headers and sampling come from OpenTelemetry's other
    variables. Raises UsageError."""
    if name not in ("otlp", "console"):
        raise UsageError(f"OTEL_TRACES_EXPORTER={name}: this server has otlp, console and none")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
    except ModuleNotFoundError as error:
        raise UsageError(
            f"traces need {error.name}: {how_to_install('serve', 'otel')}, "
            "or unset OTEL_EXPORTER_OTLP_ENDPOINT"
        ) from error
    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", SERVICE)})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = ConsoleSpanExporter(out=sys.stderr) if name == "console" else OTLPSpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _without_address() -> SpanProcessor:
    """Empties FastAPI's attributes with the path and the query of a request, which may hold anything; its
    route is told."""
    from opentelemetry.sdk.trace import Span, SpanProcessor

    class WithoutAddress(SpanProcessor):
        def on_start(self, span: Span, parent_context: object = None) -> None:
            for name in {"url.path", "url.query"} & set(span.attributes or ()):
                span.set_attribute(name, "")

    return WithoutAddress()


def _context(parent: str | None) -> Context | None:
    return None if parent is None else _FORMAT.extract({"traceparent": parent})


def _attributes(facts: Mapping[str, Value]) -> dict[str, Value]:
    """The names of attributes: `error_type` is OpenTelemetry's own, others are ours."""
    return {("error.type" if k == "error_type" else f"forescribe.{k}"): v for k, v in facts.items()}
