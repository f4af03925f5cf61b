"""Prometheus series of the jobs. Labels never hold ids or names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from ..metrics import SECONDS, TimedValue
from .storage.records import Job


class JobMetrics:
    """The help text of each series defines it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"forescribe_{name}", text, labels, registry=registry)

        self._registry = registry
        self._ended = counter("jobs_ended", "Runs of jobs by final state.", "state")
        self._resumed = counter("jobs_resumed", "Work taken over from a process that has died.")
        self._stuck = counter("jobs_stuck", "Work that its process had lost, queued again.")
        self._queue_s = Histogram(
            "forescribe_job_queue_seconds",
            "From the creation of a job to the beginning of its work.",
            buckets=SECONDS,
            registry=registry,
        )
        self._job_s = Histogram(
            "forescribe_job_seconds",
            "From the beginning of a job's work to its end, downtime included.",
            buckets=SECONDS,
            registry=registry,
        )
        self._tries = counter(
            "webhook_tries", "Delivery attempts of callbacks by result.", "answer"
        )

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge that is evaluated when metrics are read."""
        gauge = Gauge(f"forescribe_{name}", text, registry=self._registry)
        gauge.set_function(TimedValue(value))

    def count(
        self, name: str, text: str, label: str, values: Callable[[], Mapping[str, int]]
    ) -> None:
        """Add a counter that somebody else keeps, by one label."""
        self._registry.register(_Counts(f"forescribe_{name}", text, label, values))

    def ended(self, job: Job) -> None:
        """Count a run that has ended."""
        self._ended.labels(job.state).inc()
        if job.started_at is not None and job.finished_at is not None and job.run == 1:
            self._queue_s.observe(max(0.0, job.started_at - job.created_at))
            self._job_s.observe(max(0.0, job.finished_at - job.started_at))

    def resumed(self) -> None:
        self._resumed.inc()

    def stuck(self) -> None:
        self._stuck.inc()

    def called_back(self, answer: str) -> None:
        self._tries.labels(answer).inc()


@dataclass(frozen=True, eq=False)
class _Counts(Collector):
    """The counts of `values` when metrics are read."""

    name: str
    text: str
    label: str
    values: Callable[[], Mapping[str, int]]

    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily(self.name, self.text, labels=[self.label])
        for kind, count in dict(self.values()).items():
            family.add_metric([kind], count)
        yield family

    def describe(self) -> Iterable[CounterMetricFamily]:
        yield CounterMetricFamily(self.name, self.text, labels=[self.label])
