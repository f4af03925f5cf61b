"""What operators watch of the jobs, beside the service's own series. Labels never hold ids or names."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from ..metrics import Patient


class JobMetrics:
    """Each series' help text defines it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"forescribe_{name}", text, labels, registry=registry)

        self._registry = registry
        self._ended = counter("jobs_ended", "Runs of jobs by how they ended.", "state")
        self._resumed = counter("jobs_resumed", "Work taken over from a process that is gone.")
        self._stuck = counter("jobs_stuck", "Work that its process had lost, queued again.")
        self._tries = counter("webhook_tries", "Tries of callbacks by their answer.", "answer")

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        Gauge(f"forescribe_{name}", text, registry=self._registry).set_function(Patient(value))

    def ended(self, state: str) -> None:
        self._ended.labels(state).inc()

    def resumed(self) -> None:
        self._resumed.inc()

    def stuck(self) -> None:
        self._stuck.inc()

    def called_back(self, answer: str) -> None:
        self._tries.labels(answer).inc()
