"""The gauges of speech serving, read when metrics are requested.

Knows the session's slots and times; does not know requests.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..access.capacity import Admission
from ..metrics import Metrics

if TYPE_CHECKING:
    from forescribe.asr.sessions.session import Session


def watch(
    metrics: Metrics,
    admission: Admission,
    ready: Callable[[], bool],
    session: Callable[[], Session | None],
) -> None:
    """Register the gauges; `session` gives None until the model is loaded."""

    def engine_seconds() -> dict[str, float]:
        current = session()
        return dict(current.stats.seconds) if current is not None else {}

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


def _busy(session: Session | None) -> float:
    if session is None:
        return 0.0
    transcriber = session.transcriber
    return 1 - transcriber.engine.free / transcriber.batch
