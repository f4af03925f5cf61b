"""What is told of the work: log lines, metrics in Prometheus' format, and traces for OpenTelemetry.

Labels and attributes hold times, counts, codes and ids of requests; never text, file names or keys. An
exception's message may hold any of them, so its type and place are told, not its message.

Every application has its own registry of metrics, so that several in one process count separately. FastAPI
makes the span of a request itself and continues a client's trace; here are the spans of what is done for it.
Unless it is configured, OpenTelemetry's SDK is not imported. A place in a trace is text, so it is stored with
a job, and the process that does the job continues the trace. The provider is not the global one, so no
library writes into these traces.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from forescribe.asr.decode.results import PhaseTimes
from forescribe.asr.errors import ForescribeError, UsageError, how_to_install

from .errors import ApiError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    from forescribe.asr.decode.results import Outcome

UNLOGGED = frozenset({"/health", "/ready", "/metrics"})
"""Routes that are requested every few seconds by machines: they are counted, but not logged."""

CURRENT: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the current request, for log lines about it."""

SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1200.0, 3600.0)
SPEEDS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)

WHOLE_DATABASE = "of the whole database, so all its processes show the same"
"""In the help of such a gauge: a dashboard takes the maximum over processes, not the sum."""

WAIT_S = 2.0
"""How long to wait for one value."""

Value = str | int | float | bool

SERVICE = "forescribe"

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Variables that switch traces on, as OTEL_TRACES_EXPORTER does."""

log = logging.getLogger("forescribe.api")

_FORMAT = TraceContextTextMapPropagator()


def report(event: str, **facts: object) -> None:
    """Write a log line."""
    log.info(json.dumps({"event": event, **facts}))


def report_fault(error: Exception, event: str = "fault", **facts: object) -> None:
    """Write the type of an error, and the file and line that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    report(event, **facts, error=type(error).__name__, place=place)


class Metrics:
    """The help text of each series defines it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.build = Info("forescribe_build", "What runs here; always 1.", registry=self.registry)
        self._requests = self.counter("requests", "Requests answered.", "route", "status")
        self._errors = self.counter(
            "errors", "Recordings that failed after they were queued.", "code"
        )
        self._refused = self.counter("refusals", "Requests answered with an error.", "code")
        self._steps = self.histogram(
            "step_seconds",
            "Steps of a recording: upload, decode, wait for a reader, transcribe.",
            "step",
        )
        self._request_s = self.histogram(
            "request_seconds",
            "From the first byte of a request to the last of its answer.",
            "route",
        )
        self._speed = self.histogram(
            "real_time_factor",
            "Seconds of audio per second in the engine, for each recording, with others at the same time.",
            buckets=SPEEDS,
        )
        self._audio_s = self.counter("audio_seconds", "Audio transcribed.")
        self._windows = self.counter("windows", "Windows of audio by result.", "state")
        self._fallbacks = self.counter("fallbacks", "Windows decoded again at a temperature.")
        self._tokens = {
            "tokens": self.counter("tokens", "Tokens of transcripts."),
            "drafted": self.counter("drafted_tokens", "Tokens drafted."),
            "accepted": self.counter("accepted_tokens", "Drafted tokens accepted by the target."),
        }

    def refused(self, code: str) -> None:
        """Count a request that was answered with an error."""
        self._refused.labels(code).inc()

    def took(self, step: str, wall_s: float) -> None:
        """Record the duration of a step: `upload`, `decode`, `wait`, `transcribe`."""
        self._steps.labels(step).observe(wall_s)

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"forescribe_{name}", text, labels, registry=self.registry)

    def histogram(
        self, name: str, text: str, *labels: str, buckets: Sequence[float] = SECONDS
    ) -> Histogram:
        return Histogram(
            f"forescribe_{name}", text, labels, buckets=buckets, registry=self.registry
        )

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge that is evaluated when metrics are requested."""
        Gauge(f"forescribe_{name}", text, registry=self.registry).set_function(TimedValue(value))

    def count(
        self, name: str, text: str, value: Callable[[], float | Mapping[str, float]], *label: str
    ) -> None:
        """Add a counter that somebody else keeps, by its label if it has one; read when metrics are
        requested."""
        self.registry.register(_Count(f"forescribe_{name}", text, value, label))

    def answered(self, route: str, status: int, wall_s: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._request_s.labels(route).observe(wall_s)

    def ended(self, outcome: Outcome) -> None:
        """Count a recording that has left the engine."""
        if outcome.error is not None:
            self._errors.labels(outcome.error.code).inc()
            return
        transcript = outcome.transcript
        assert transcript is not None
        self._audio_s.inc(transcript.duration)
        if outcome.wall_s > 0:
            self._speed.observe(transcript.duration / outcome.wall_s)
        for state, count in outcome.windows.items():
            self._windows.labels(state).inc(count)
        self._fallbacks.inc(outcome.fallbacks)
        for key, series in self._tokens.items():
            series.inc(cast(int, transcript.stats[key]))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class TimedValue:
    """A value whose computation may fail or hang, for example a query of a database that is away. It is NaN
    then, which Prometheus shows as a gap, so that the other series are always delivered.

    One computation runs at a time: while it hangs, no other begins.
    """

    def __init__(self, value: Callable[[], float], wait_s: float = WAIT_S) -> None:
        self._value, self.wait_s = value, wait_s
        self._lock = threading.Lock()
        self._pending: Future[float] | None = None

    def __call__(self) -> float:
        with self._lock:
            if self._pending is None or self._pending.done():
                self._pending = Future()
                threading.Thread(target=self._run, args=(self._pending,), daemon=True).start()
            pending = self._pending
        try:
            return pending.result(self.wait_s)
        except Exception:
            return math.nan

    def _run(self, pending: Future[float]) -> None:
        try:
            pending.set_result(float(self._value()))
        except Exception as error:
            pending.set_exception(error)


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
        return {} if self.active else None

    def record_phases(self, phases: PhaseTimes | None, parent: str | None) -> None:
        """Record the phases of a recording."""
        for name, parts in (phases or {}).items():
            began_ns, ended_ns = zip(*parts, strict=True)
            busy_s = round((sum(ended_ns) - sum(began_ns)) / 1e9, 6)
            self.record(name, min(began_ns), max(ended_ns), parent=parent, busy_s=busy_s)

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


class Observation:
    """What is told of one recording, from the time when it was queued."""

    def __init__(self, metrics: Metrics, tracing: Tracing) -> None:
        self.metrics, self.tracing = metrics, tracing
        self.phases, self._place = tracing.phases(), place()
        self._request_id = CURRENT.get()
        self._queued_ns = time.time_ns()

    def ended(self, outcome: Outcome) -> None:
        """Count, log and trace what the engine has done."""
        ended_ns, wall_s = time.time_ns(), outcome.wall_s
        wait_s = max(0.0, (ended_ns - self._queued_ns) / 1e9 - wall_s)
        self.metrics.ended(outcome)
        self.metrics.took("wait", wait_s)
        self.metrics.took("transcribe", wall_s)
        facts: dict[str, object] = {"request_id": self._request_id, "wait_s": round(wait_s, 3)}
        failed: dict[str, Value] = {}
        if outcome.error is not None:
            facts["error"] = failed["error_type"] = outcome.error.code
        elif outcome.transcript is not None:
            audio_s, stats = outcome.transcript.duration, outcome.transcript.stats
            facts |= {
                "audio_s": round(audio_s, 3),
                "wall_s": round(wall_s, 3),
                "x_real_time": round(audio_s / wall_s, 2) if wall_s > 0 else None,
                "windows": stats["windows"],
                "tokens": stats["tokens"],
                "acceptance_rate": stats["acceptance_rate"],
                "fallbacks": outcome.fallbacks,
            }
        report("recording", **facts)
        began_ns = self._queued_ns + round(1e9 * wait_s)
        self.tracing.record("queue", self._queued_ns, began_ns, parent=self._place)
        span = self.tracing.record("transcribe", began_ns, ended_ns, parent=self._place, **failed)
        self.tracing.record_phases(self.phases, span)


@dataclass(frozen=True, eq=False)
class _Count(Collector):
    name: str
    text: str
    value: Callable[[], float | Mapping[str, float]]
    label: tuple[str, ...]

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self.name, self.text, labels=self.label)
        value = self.value()
        if isinstance(value, Mapping):
            for kind, count in dict(value).items():
                family.add_metric([kind], count)
        else:
            family.add_metric([], value)
        yield family


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
