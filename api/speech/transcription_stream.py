"""One upload on its way through the engine, as a stream of parts on the event loop.

    stream = serving.follow(task)
    try:
        while (part := await stream.next()) is not None: ...
        stream.outcome
    finally:
        stream.cancel()          # does nothing after the end

Does not know forms and answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ..access.capacity import Reservation
from ..errors import ApiError
from ..http.request_id import CURRENT, report
from ..metrics import Metrics
from ..telemetry.tracing import PLACE, Tracing, Value

if TYPE_CHECKING:
    from forescribe.asr.audio.inputs import DecodedFile
    from forescribe.asr.decode.options import Options, Outcome
    from forescribe.asr.sessions.parts import Part
    from forescribe.asr.sessions.submission import Tap


TRACED = ("windows", "tokens", "drafted", "accepted", "rounds")
"""Figures of a transcript that its span has as attributes."""


@dataclass(frozen=True)
class TranscriptionTask:
    """An upload to transcribe.

    When the engine is done with it, however it ends, its samples are closed and its reservation is
    released; with a `tap`, the owner of the tap has more to do and releases the reservation itself.
    """

    decoded_file: DecodedFile
    options: Options
    reservation: Reservation
    tap: Tap | None = None

    def release(self) -> None:
        self.decoded_file.close()
        if self.tap is None:
            self.reservation.release()


class TranscriptionStream:
    """The listener of a submission: called on the engine's thread, read on the event loop.

    `timeout_s` counts from its creation. The submitting code sets `cancelled_by`.
    """

    def __init__(
        self,
        task: TranscriptionTask,
        timeout_s: float,
        metrics: Metrics,
        tracing: Tracing,
    ) -> None:
        self.task, self.timeout_s, self.metrics = task, timeout_s, metrics
        self.outcome: Outcome | None = None
        self._loop = asyncio.get_running_loop()
        self._end_s = self._loop.time() + timeout_s
        self._parts: asyncio.Queue[Part | None] = asyncio.Queue()  # at most a recording's windows
        self._cancel: Callable[[], None] | None = None
        self.tracing, self.phases = tracing, tracing.phases()
        self._place, self._queued_ns = PLACE.get(), time.time_ns()
        self._request_id, self._queued_s = CURRENT.get(), time.perf_counter()

    # -- on the engine's thread -------------------------------------------------------------------

    def progressed(self, part: Part) -> None:
        self.task.reservation.progressed(part.done_s)
        self._put(part)

    def ended(self, outcome: Outcome | None) -> None:
        self.outcome = outcome
        try:
            if outcome is not None:
                self._report(outcome)
                self.task.reservation.admission.record_speed(
                    self.task.decoded_file.duration_s, outcome.wall_s
                )
        finally:
            self.task.release()
            self._put(None)

    def _report(self, outcome: Outcome) -> None:
        """Count and log the recording, without its text."""
        self.metrics.ended(outcome)
        wait_s = max(0.0, time.perf_counter() - self._queued_s - outcome.wall_s)
        self.metrics.took("wait", wait_s)
        self.metrics.took("transcribe", outcome.wall_s)
        self._trace(outcome, wait_s)
        facts: dict[str, object] = {"request_id": self._request_id, "wait_s": round(wait_s, 3)}
        if outcome.error is not None:
            report("recording", **facts, error=outcome.error.code)
            return
        assert outcome.transcript is not None
        audio_s, stats = outcome.transcript.duration, outcome.transcript.stats
        report(
            "recording",
            **facts,
            audio_s=round(audio_s, 3),
            wall_s=round(outcome.wall_s, 3),
            x_real_time=round(audio_s / outcome.wall_s, 2) if outcome.wall_s > 0 else None,
            windows=stats["windows"],
            tokens=stats["tokens"],
            acceptance_rate=stats["acceptance_rate"],
            fallbacks=sum(d.tried > 0 for d in outcome.decoded),
        )

    def _trace(self, outcome: Outcome, wait_s: float) -> None:
        """Record the spans of the recording."""
        if not self.tracing.active:
            return
        began_ns = self._queued_ns + round(1e9 * wait_s)
        self.tracing.record("queue", self._queued_ns, began_ns, parent=self._place)
        facts: dict[str, Value] = {}
        if outcome.error is not None:
            facts["error_type"] = outcome.error.code
        elif outcome.transcript is not None:
            stats = outcome.transcript.stats
            facts = {name: cast(Value, stats[name]) for name in TRACED}
        place = self.tracing.record(
            "transcribe", began_ns, time.time_ns(), parent=self._place, **facts
        )
        self.tracing.record_phases(self.phases, place)

    def _put(self, part: Part | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: there is no reader
            self._loop.call_soon_threadsafe(self._parts.put_nowait, part)

    # -- on the event loop ------------------------------------------------------------------------

    def cancelled_by(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel

    async def next(self) -> Part | None:
        """The next part; None at the end, when `outcome` is set.

        Raises ApiError if the recording fails or takes too long.
        """
        try:
            async with asyncio.timeout_at(self._end_s):
                part = await self._parts.get()
        except TimeoutError as error:
            if self._loop.time() < self._end_s:
                raise  # a timeout of the caller
            text = f"not done within {self.timeout_s:g} s"
            raise ApiError("inference_timeout", text) from error
        if part is None:
            self._cancel = None
            assert self.outcome is not None  # a reader that has cancelled does not read on
            if self.outcome.error is not None:
                raise ApiError.of(self.outcome.error) from self.outcome.error
        return part

    def cancel(self) -> None:
        """Free its slots before the engine's next round."""
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
