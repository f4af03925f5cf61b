"""Metrics count what their help says."""

from __future__ import annotations

from types import SimpleNamespace

from forescribe.api.telemetry import Metrics
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Span


def test_a_window_counts_once_however_many_spans_and_parts_it_has() -> None:
    """Three windows of speech: one in two parts, one whose end has no words, one without text."""
    part = lambda index, start, state: SimpleNamespace(  # noqa: E731
        index=index, start=start, state=state, tried=0.0
    )
    decoded = (
        part(0, 0, "decoded"),
        part(0, 10, "failed"),
        part(1, 20, "decoded"),
        part(3, 50, "silent"),
    )
    spans = (
        Span(0, 10, "decoded"),
        Span(10, 20, "failed"),
        Span(20, 30, "decoded"),
        Span(30, 40, "failed"),
        Span(40, 50, "silent"),
        Span(50, 60, "silent"),
    )
    figures = dict.fromkeys(("tokens", "drafted", "accepted"), 0)
    made = Transcript((), 60, Coverage(spans), stats=figures)
    metrics = Metrics()
    metrics.ended(SimpleNamespace(error=None, transcript=made, wall_s=0.0, decoded=decoded))
    lines = [line for line in metrics.text().decode().splitlines() if "_windows_total{" in line]
    counts = {line.split('"')[1]: float(line.split()[-1]) for line in lines}
    assert {state: count for state, count in counts.items() if count} == {
        "decoded": 2,
        "silent": 2,
    }
