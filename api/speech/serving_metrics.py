"""The gauges of speech serving, read when metrics are requested.

Knows the session's slots and times; does not know requests.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING

from ..access.capacity import Admission
from ..metrics import Metrics

if TYPE_CHECKING:
    from forescribe.asr.sessions.session import Session


def watch(
    metrics: Metrics,
    admission: Admission,
    model: str,
    ready: Callable[[], bool],
    session: Callable[[], Session | None],
) -> None:
    """Register the gauges; `session` gives None until the model is loaded."""

    def engine_seconds() -> dict[str, float]:
        current = session()
        return dict(current.stats.seconds) if current is not None else {}

    def engine_counts() -> dict[str, float]:
        current = session()
        if current is None:
            return {}
        stats = current.stats
        return {
            "rounds": stats.rounds,
            "row_rounds": stats.row_rounds,
            "target_forwards": stats.target_forwards,
            "draft_forwards": stats.draft_forwards,
            "engine_faults": stats.faults,
        }

    metrics.build(lambda: _build(model, session()))
    metrics.counts(engine_counts)
    metrics.watch("ready", "Whether requests are admitted.", ready)
    metrics.watch("requests_inside", "Requests in progress.", lambda: admission.requests)
    metrics.watch("slots_busy", "Share of the engine's slots in use.", lambda: _busy(session()))
    metrics.watch(
        "scratch_free_bytes",
        "Free space for uploads and their samples.",
        lambda: shutil.disk_usage(tempfile.gettempdir()).free,
    )
    metrics.engine(engine_seconds)
    metrics.watch("queued_audio_seconds", "Audio not yet decoded.", lambda: admission.seconds)


def _build(model: str, session: Session | None) -> dict[str, str]:
    """Version, model, engine and device; the last two are empty until the model is loaded."""
    whisper = None if session is None else session.transcriber.whisper
    return {
        "version": version("forescribe"),
        "model": model,
        "engine": "" if whisper is None else str(whisper.engine),
        "device": "" if whisper is None else whisper.device.name,
    }


def _busy(session: Session | None) -> float:
    if session is None:
        return 0.0
    transcriber = session.transcriber
    return 1 - transcriber.engine.free / transcriber.batch
