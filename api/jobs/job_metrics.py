"""Prometheus series of the jobs. Labels never hold ids or names."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from ..metrics import TimedValue


class JobMetrics:
    """The help text of each series defines it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"forescribe_{name}", text, labels, registry=registry)

        self._registry = registry
        self._ended = counter("jobs_ended", "Runs of jobs by final state.", "state")
        self._resumed = counter("jobs_resumed", "Work taken over from a process that has died.")
        self._stuck = counter("jobs_stuck", "Work that its process had lost, queued again.")
        self._tries = counter(
            "webhook_tries", "Delivery attempts of callbacks by result.", "answer"
        )

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge that is evaluated when metrics are read."""
        gauge = Gauge(f"forescribe_{name}", text, registry=self._registry)
        gauge.set_function(TimedValue(value))

    def ended(self, state: str) -> None:
        self._ended.labels(state).inc()

    def resumed(self) -> None:
        self._resumed.inc()

    def stuck(self) -> None:
        self._stuck.inc()

    def called_back(self, answer: str) -> None:
        self._tries.labels(answer).inc()
