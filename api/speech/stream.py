"""One recording on its way through the engine: its parts as they become final, and what is observed of it.

    stream = serving.follow(samples, options, reservation, None)
    while (part := await stream.next()) is not None: ...
    stream.outcome

The engine's thread tells a `TranscriptionStream`, the event loop reads it. An `Observation` counts, logs and
traces the recording, without its text. Does not know uploads and answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ..errors import ApiError
from ..http.errors import CURRENT, report
from ..metrics import Metrics
from ..process.models import Mailbox
from ..telemetry import Tracing, Value, place

if TYPE_CHECKING:
    from forescribe.asr.decode.options import Outcome
    from forescribe.asr.decode.parts import Part
    from forescribe.asr.formats.transcript import Transcript

TRACED = ("windows", "tokens", "drafted", "accepted", "rounds")
"""Figures of a transcript that its span has as attributes."""


class TranscriptionStream:
    """The listener of a submission: called on the engine's thread, read on the event loop.

    `timeout_s` counts from its creation. `progressed` is called with the seconds that are decoded, `done`
    when the engine is done with the recording. The submitting code sets `cancelled_by`.
    """

    def __init__(
        self,
        observation: Observation,
        timeout_s: float,
        progressed: Callable[[float], None],
        done: Callable[[], None],
    ) -> None:
        self.outcome: Outcome | None = None
        self._observation, self._progressed, self._done = observation, progressed, done
        self._parts: Mailbox[Part | None] = Mailbox(timeout_s)  # at most a recording's windows
        self._cancel: Callable[[], None] | None = None

    # -- on the engine's thread -------------------------------------------------------------------

    def progressed(self, part: Part) -> None:
        self._progressed(part.done_s)
        self._parts.put(part)

    def ended(self, outcome: Outcome | None) -> None:
        self.outcome = outcome
        try:
            if outcome is not None:
                self._observation.ended(outcome)
        finally:
            self._done()
            self._parts.put(None)

    # -- on the event loop ------------------------------------------------------------------------

    def cancelled_by(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel

    async def next(self) -> Part | None:
        """The next part; None at the end, when `outcome` is set.

        Raises ApiError if the recording fails or takes too long.
        """
        part = await self._parts.next()
        if part is None:
            self._cancel = None
            assert self.outcome is not None  # a reader that has cancelled does not read on
            if self.outcome.error is not None:
                raise ApiError.of(self.outcome.error) from self.outcome.error
        return part

    @property
    def transcript(self) -> Transcript:
        """The transcript, once `next` has said that it is there."""
        assert self.outcome is not None and self.outcome.transcript is not None
        return self.outcome.transcript

    def cancel(self) -> None:
        """Free its slots before the engine's next round."""
        if self._cancel is not None:
            self._cancel()
            self._cancel = None


class Observation:
    """What is told of one recording, from the time when it was queued."""

    def __init__(self, metrics: Metrics, tracing: Tracing) -> None:
        self.metrics, self.tracing, self.phases = metrics, tracing, tracing.phases()
        self._place, self._request_id = place(), CURRENT.get()
        self._queued_ns = time.time_ns()

    def ended(self, outcome: Outcome) -> None:
        """Count, log and trace what the engine has done."""
        ended_ns, wall_s = time.time_ns(), outcome.wall_s
        wait_s = max(0.0, (ended_ns - self._queued_ns) / 1e9 - wall_s)
        self.metrics.ended(outcome)
        self.metrics.took("wait", wait_s)
        self.metrics.took("transcribe", wall_s)
        facts: dict[str, object] = {"request_id": self._request_id, "wait_s": round(wait_s, 3)}
        traced: dict[str, Value] = {}
        if outcome.error is not None:
            facts["error"] = traced["error_type"] = outcome.error.code
        elif outcome.transcript is not None:
            audio_s, stats = outcome.transcript.duration, outcome.transcript.stats
            traced = {name: cast(Value, stats[name]) for name in TRACED}
            facts |= {
                "audio_s": round(audio_s, 3),
                "wall_s": round(wall_s, 3),
                "x_real_time": round(audio_s / wall_s, 2) if wall_s > 0 else None,
                "windows": stats["windows"],
                "tokens": stats["tokens"],
                "acceptance_rate": stats["acceptance_rate"],
                "fallbacks": sum(d.tried > 0 for d in outcome.decoded),
            }
        report("recording", **facts)
        began_ns = self._queued_ns + round(1e9 * wait_s)
        self.tracing.record("queue", self._queued_ns, began_ns, parent=self._place)
        span = self.tracing.record("transcribe", began_ns, ended_ns, parent=self._place, **traced)
        self.tracing.record_phases(self.phases, span)
