"""Metrics in Prometheus' format. Labels never hold ids, names or keys.

    metrics = Metrics()
    watch(metrics, admission, "large", ready, session)      # the gauges of speech serving
    metrics.text()

Every application has its own registry, so that several applications in one process count separately. Of the
values that others keep, Metrics knows only how to read them.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forescribe.asr.formats import transcript_parts

from .access.limits import Admission

if TYPE_CHECKING:
    from forescribe.asr.decode.options import Outcome
    from forescribe.asr.decode.session import Session
    from forescribe.speculative.stats import Stats


SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1200.0, 3600.0)
SPEEDS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)

ENGINE_COUNTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "rounds": ("rounds", "Rounds of the engine, each of a whole batch."),
        "row_rounds": ("row_rounds", "Rounds that windows took part in."),
        "target_forwards": ("target_forwards", "Forward passes of the target."),
        "draft_forwards": ("draft_forwards", "Forward passes of drafts."),
        "engine_faults": (
            "faults",
            "Exceptions in models, drafters, rules and schedules, repeated ones included.",
        ),
    }
)
"""Counters of the engine: their names in its statistics, and their help."""

WHOLE_DATABASE = "of the whole database, so all its processes show the same"
"""In the help of such a gauge: a dashboard takes the maximum over processes, not the sum."""

WAIT_S = 2.0
"""How long to wait for one value."""


class Metrics:
    """The help text of each series defines it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
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
        self._wordless_s = self.counter(
            "voice_without_words_seconds", "Audio in which a voice was heard and no word written."
        )
        self._windows = self.counter("windows", "Windows of audio by result.", "state")
        self._fallbacks = self.counter("fallbacks", "Windows decoded again at a temperature.")
        self._tokens = self.counter("tokens", "Tokens of transcripts.")
        self._drafted = self.counter("drafted_tokens", "Tokens drafted.")
        self._accepted = self.counter("accepted_tokens", "Drafted tokens accepted by the target.")

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
        self, name: str, text: str, label: str, values: Callable[[], Mapping[str, float]]
    ) -> None:
        """Add a counter that somebody else keeps, by one label; read when metrics are requested."""

        def read() -> Iterator[Metric]:
            family = CounterMetricFamily(f"forescribe_{name}", text, labels=[label])
            for kind, count in dict(values()).items():
                family.add_metric([kind], count)
            yield family

        self.registry.register(Series(read))

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
        self._wordless_s.inc(transcript_parts.seconds(transcript.coverage.wordless_samples or 0))
        for span in transcript.coverage.spans:
            self._windows.labels(span.state).inc()
        self._fallbacks.inc(sum(d.tried > 0 for d in outcome.decoded))
        for series, key in (
            (self._tokens, "tokens"),
            (self._drafted, "drafted"),
            (self._accepted, "accepted"),
        ):
            series.inc(cast(int, transcript.stats[key]))

    def text(self) -> bytes:
        return generate_latest(self.registry)


def watch(
    metrics: Metrics,
    admission: Admission,
    model: str,
    ready: Callable[[], bool],
    session: Callable[[], Session | None],
    stats: Callable[[], Stats],
) -> None:
    """Register the gauges of speech serving; `session` gives None while the model is not in memory, and
    `stats` counts since the start."""
    metrics.registry.register(Series(lambda: _build(model, session())))
    metrics.registry.register(Series(lambda: _engine_counts(stats())))
    metrics.count(
        "engine_seconds",
        "Time of the engine's thread by stage; up to five seconds old.",
        "stage",
        lambda: stats().seconds,
    )
    metrics.watch("ready", "Whether requests are admitted.", ready)
    metrics.watch(
        "model_loaded",
        "Whether the speech model is in memory; see idle_unload_s.",
        lambda: session() is not None,
    )
    metrics.watch("requests_inside", "Requests in progress.", lambda: admission.requests)
    metrics.watch("slots_busy", "Share of the engine's slots in use.", lambda: _busy(session()))
    metrics.watch(
        "scratch_free_bytes",
        "Free space for uploads and their samples.",
        lambda: shutil.disk_usage(tempfile.gettempdir()).free,
    )
    metrics.watch("queued_audio_seconds", "Audio not yet decoded.", lambda: admission.seconds)


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
            if self._pending is None:
                self._pending = Future()
                threading.Thread(target=self._run, args=(self._pending,), daemon=True).start()
            pending = self._pending
        try:
            return pending.result(self.wait_s)
        except Exception:
            return math.nan
        finally:
            with self._lock:
                if pending.done() and self._pending is pending:
                    self._pending = None

    def _run(self, pending: Future[float]) -> None:
        try:
            pending.set_result(float(self._value()))
        except Exception as error:
            pending.set_exception(error)


@dataclass(frozen=True, eq=False)
class Series(Collector):
    """Series whose values somebody else keeps, read when metrics are requested."""

    read: Callable[[], Iterable[Metric]]

    def collect(self) -> Iterable[Metric]:
        return self.read()


def _build(model: str, session: Session | None) -> Iterator[Metric]:
    """Version, model, engine and device; the last two are empty until the model is loaded."""
    whisper = None if session is None else session.context.whisper
    facts = {
        "version": version("forescribe"),
        "model": model,
        "engine": "" if whisper is None else str(whisper.engine),
        "device": "" if whisper is None else whisper.device.name,
    }
    text = "What runs here; always 1."
    family = GaugeMetricFamily("forescribe_build_info", text, labels=list(facts))
    family.add_metric(list(facts.values()), 1)
    yield family


def _engine_counts(stats: Stats) -> Iterator[Metric]:
    """Counters that the engine keeps itself; up to five seconds old."""
    for name, (attribute, text) in ENGINE_COUNTS.items():
        yield CounterMetricFamily(f"forescribe_{name}", text, value=getattr(stats, attribute))


def _busy(session: Session | None) -> float:
    if session is None:
        return 0.0
    context = session.context
    return 1 - context.engine.free / context.batch
