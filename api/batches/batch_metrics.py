"""Prometheus series of batches. Labels never hold ids or names.

The help text of each series defines it.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from ..metrics import WHOLE_DATABASE, TimedValue


class BatchMetrics:
    """Counts of lines, and a gauge of batches that is read when metrics are requested."""

    def __init__(self, registry: CollectorRegistry, unfinished: Callable[[], float]) -> None:
        self._lines = Counter(
            "forescribe_batch_lines", "Lines of batches by result.", ["state"], registry=registry
        )
        text = f"Batches that have not ended, {WHOLE_DATABASE}."
        gauge = Gauge("forescribe_batches_open", text, registry=registry)
        gauge.set_function(TimedValue(unfinished))

    def ended(self, state: str) -> None:
        self._lines.labels(state).inc()
