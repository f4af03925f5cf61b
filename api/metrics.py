"""Metrics: what operators watch, in Prometheus' format. Labels never hold ids, names or keys.

Every application has a registry of its own, so that tests and several applications in one process do
not count together.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from forescribe.asr.decode.outcome import Outcome

SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1200.0, 3600.0)
SPEEDS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)


WAIT_S = 2.0
"""For one value."""


class Metrics:
    """Each series' help text defines it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter("requests", "Answers given.", "route", "status")
        self._errors = self._counter("errors", "Recordings that failed once queued.", "code")
        self._refused = self._counter("refusals", "Requests answered with an error.", "code")
        self._steps = Histogram(
            "forescribe_step_seconds",
            "Of a recording's way: its body comes in, is decoded, waits for a reader, is transcribed.",
            ["step"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._request_s = Histogram(
            "forescribe_request_seconds",
            "From a request's first byte to its answer's last.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._speed = Histogram(
            "forescribe_real_time_factor",
            "Seconds of audio per second of a recording's way through the engine, beside others.",
            buckets=SPEEDS,
            registry=self.registry,
        )
        self._audio_s = self._counter("audio_seconds", "Audio transcribed.")
        self._windows = self._counter(
            "windows", "Windows of audio by what became of them.", "state"
        )
        self._fallbacks = self._counter("fallbacks", "Windows decoded again at a temperature.")
        self._tokens = self._counter("tokens", "Tokens written.")
        self._drafted = self._counter("drafted_tokens", "Tokens that the draft proposed.")
        self._accepted = self._counter("accepted_tokens", "Drafted tokens that the target kept.")

    def refused(self, code: str) -> None:
        """A request was answered with an error."""
        self._refused.labels(code).inc()

    def took(self, step: str, wall_s: float) -> None:
        """A request's way in: `upload`, `decode`, `wait`, `transcribe`."""
        self._steps.labels(step).observe(wall_s)

    def engine(self, seconds: Callable[[], Mapping[str, float]]) -> None:
        """The engine's own stopwatch, read when it is asked for."""
        self.registry.register(_Stages(seconds))

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        Gauge(f"forescribe_{name}", text, registry=self.registry).set_function(Patient(value))

    def answered(self, route: str, status: int, wall_s: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._request_s.labels(route).observe(wall_s)

    def ended(self, outcome: Outcome) -> None:
        """Counts a recording that has left the engine."""
        if outcome.error is not None:
            self._errors.labels(outcome.error.code).inc()
            return
        transcript = outcome.transcript
        assert transcript is not None
        self._audio_s.inc(transcript.duration)
        if outcome.wall_s > 0:
            self._speed.observe(transcript.duration / outcome.wall_s)
        for span in transcript.coverage.spans:
            self._windows.labels(span.state).inc()
        self._fallbacks.inc(sum(d.result.request.temperature > 0 for d in outcome.decoded))
        for series, key in (
            (self._tokens, "tokens"),
            (self._drafted, "drafted"),
            (self._accepted, "accepted"),
        ):
            series.inc(cast(int, transcript.stats[key]))

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"forescribe_{name}", text, labels, registry=self.registry)


class Patient:
    """A value that may take long, or fail: what it is asked of may be away. NaN then, which Prometheus
    shows as a gap, so that the other series are told in any case.

    One look at a time: while one hangs, no other begins.
    """

    def __init__(self, value: Callable[[], float], wait_s: float = WAIT_S) -> None:
        self._value, self.wait_s = value, wait_s
        self._lock = threading.Lock()
        self._look: Future[float] | None = None

    def __call__(self) -> float:
        with self._lock:
            if self._look is None:
                self._look = Future()
                threading.Thread(target=self._run, args=(self._look,), daemon=True).start()
            look = self._look
        try:
            return look.result(self.wait_s)
        except Exception:
            return math.nan
        finally:
            with self._lock:
                if look.done() and self._look is look:
                    self._look = None

    def _run(self, look: Future[float]) -> None:
        try:
            look.set_result(float(self._value()))
        except Exception as error:
            look.set_exception(error)


class _Stages(Collector):
    """Seconds by stage; sums over them are the time that the engine was busy."""

    def __init__(self, seconds: Callable[[], Mapping[str, float]]) -> None:
        self.seconds = seconds

    def collect(self) -> Iterator[Metric]:
        text = "Time of the engine's thread, by what it did; as it was up to five seconds ago."
        found = CounterMetricFamily("forescribe_engine_seconds", text, labels=["stage"])
        for stage, seconds in self.seconds().items():
            found.add_metric([stage], seconds)
        yield found
