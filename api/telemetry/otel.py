"""Traces by OpenTelemetry's SDK. The only module that imports it.

The provider is private: it is not the global one, so libraries that trace by themselves (FastAPI, DBOS)
do not write into these traces, and their attributes, which contain paths and messages, are not sent.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
)
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from forescribe.asr.decode.options import PhaseTimes
from forescribe.asr.errors import ForescribeError, UsageError

from ..errors import ApiError
from .tracing import PLACE, Span, Tracing, Value

SERVICE = "forescribe"
PREFIX = "forescribe."
"""Of the names of attributes that are not OpenTelemetry's own."""

_FORMAT = TraceContextTextMapPropagator()


class OtelSpan(Span):
    """A span of the SDK."""

    def __init__(self, span: SdkSpan) -> None:
        self.span = span

    def set(self, **facts: Value) -> None:
        for name, value in facts.items():
            self.span.set_attribute(_name(name), value)

    def rename(self, name: str) -> None:
        self.span.update_name(name)

    def fail(self, code: str) -> None:
        self.span.set_status(Status(StatusCode.ERROR))
        self.span.set_attribute("error.type", code)


class OtelTracing(Tracing):
    """Writes spans to a provider. Sampling and limits are the provider's, from OTEL_* variables."""

    active = True

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider
        self._tracer = provider.get_tracer(SERVICE)

    @contextmanager
    def span(
        self, name: str, *, parent: str | None = None, server: bool = False, **facts: Value
    ) -> Iterator[Span]:
        kind = SpanKind.SERVER if server else SpanKind.INTERNAL
        started = self._start(name, parent, kind, time.time_ns(), facts)
        span, before = OtelSpan(started), PLACE.set(place_of(started))
        try:
            yield span
        except BaseException as error:
            if not isinstance(error, GeneratorExit):
                span.fail(_code(error))
            raise
        finally:
            PLACE.reset(before)
            started.end()

    def record(
        self, name: str, began_ns: int, ended_ns: int, *, parent: str | None = None, **facts: Value
    ) -> str | None:
        span = self._start(name, parent, SpanKind.INTERNAL, began_ns, facts)
        span.end(max(began_ns, ended_ns))
        return place_of(span)

    def phases(self) -> PhaseTimes | None:
        return PhaseTimes()

    def record_phases(self, phases: PhaseTimes | None, parent: str | None) -> None:
        for name, span in (phases.spans if phases is not None else {}).items():
            busy_s = round(span.busy_ns / 1e9, 6)
            self.record(name, span.began_ns, span.ended_ns, parent=parent, busy_s=busy_s)

    def close(self) -> None:
        self.provider.shutdown()

    def _start(
        self,
        name: str,
        parent: str | None,
        kind: SpanKind,
        began_ns: int,
        facts: dict[str, Value],
    ) -> SdkSpan:
        carrier = {"traceparent": parent or PLACE.get() or ""}
        span = self._tracer.start_span(
            name,
            _FORMAT.extract(carrier),
            kind,
            {_name(key): value for key, value in facts.items()},
            start_time=began_ns,
        )
        return span  # type: ignore[return-value]


def traces() -> OtelTracing:
    """Tracing to the exporter of OTEL_TRACES_EXPORTER: `otlp` (the default) or `console`. Endpoint, headers
    and sampling come from its other variables. Raises UsageError for another exporter."""
    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", SERVICE)})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_exporter()))
    return OtelTracing(provider)


def place_of(span: SdkSpan) -> str:
    """The place of a span as `traceparent`."""
    carrier: dict[str, str] = {}
    _FORMAT.inject(carrier, set_span_in_context(span))
    return carrier["traceparent"]


def _exporter() -> SpanExporter:
    name = os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() or "otlp"
    if name == "console":
        return ConsoleSpanExporter(out=sys.stderr)
    if name != "otlp":
        raise UsageError(f"OTEL_TRACES_EXPORTER={name}: this server has otlp, console and none")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _name(key: str) -> str:
    """The name of an attribute: `http_route` is OpenTelemetry's `http.route`."""
    if key.startswith(("http_", "error_")):
        return (
            key.replace("http_request_", "http.request.")
            .replace("http_response_", "http.response.")
            .replace("http_", "http.")
            .replace("error_", "error.")
        )
    return PREFIX + key


def _code(error: BaseException) -> str:
    """What failed, without the message, which may hold anything."""
    if isinstance(error, ApiError | ForescribeError):
        return error.code
    return type(error).__name__
