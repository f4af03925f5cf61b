"""A recording in the engine, for those who wait for it: another thread, or the event loop.

Groups are decoded ahead of the thread that stores them, so the engine never waits for a disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from forescribe.asr.errors import ForescribeError

from ..errors import ApiError
from ..process import Mailbox

if TYPE_CHECKING:
    from forescribe.asr.decode.driver import Session
    from forescribe.asr.decode.planned import Group
    from forescribe.asr.decode.recording import Submission
    from forescribe.asr.decode.results import Outcome, Part, PhaseTimes
    from forescribe.asr.formats.transcript import Transcript
    from forescribe.asr.formats.transcript_parts import Notice


class Decoding:
    """The listener of a submission. The engine's thread calls `progressed` with the seconds that are decoded,
    and `done` with the outcome, None where it was cancelled. `timeout_s` counts from its creation. `phases`
    has the times of the engine's work, where they are traced."""

    def __init__(
        self,
        *,
        timeout_s: float | None = None,
        progressed: Callable[[float], None] = lambda seconds: None,
        done: Callable[[Outcome | None], None] = lambda outcome: None,
        phases: PhaseTimes | None = None,
    ) -> None:
        self.submission: Submission | None = None
        self.phases = phases
        self.notices: tuple[Notice, ...] = ()
        """Warnings about the request, which the transcript gets besides its own."""
        self._session: Session | None = None
        self._progressed, self._done = progressed, done
        self._parts = None if timeout_s is None else Mailbox["Part | None"](timeout_s)
        self._changed = threading.Condition()  # guards the next four
        self._groups: dict[int, Group] = {}
        self._outcome: Outcome | None = None
        self._ended = False
        self._reason: BaseException | None = None  # of a cancellation

    def queued(self, session: Session, submission: Submission) -> None:
        """Where it can be cancelled."""
        self._session, self.submission = session, submission

    # -- on the engine's thread -------------------------------------------------------------------

    def progressed(self, part: Part) -> None:
        self._progressed(part.done_s)
        if self._parts is not None:  # at most a recording's windows
            self._parts.put(part)

    def grouped(self, group: Group) -> None:
        with self._changed:
            self._groups[group.k] = group
            self._changed.notify_all()

    def ended(self, outcome: Outcome | None) -> None:
        with self._changed:
            self._outcome, self._ended = outcome, True
            self._changed.notify_all()
        try:
            self._done(outcome)
        finally:
            if self._parts is not None:
                self._parts.put(None)

    # -- on a thread that waits -------------------------------------------------------------------

    def wait_for(self, k: int) -> Group:
        """Group `k`, once it is decoded; others may be finished before it. It is returned only once. Raises
        the error of the recording, or the reason given to `cancel`."""
        with self._changed:
            self._changed.wait_for(lambda: k in self._groups or self._ended or self._reason)
            if k in self._groups and self._reason is None:
                return self._groups.pop(k)
        self._result()
        raise ForescribeError("the recording ended without one of its groups")

    def outcome(self) -> Outcome:
        """The outcome with its transcript. Raises as `wait_for` does."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._reason)
        return self._result()

    def wait_until_released(self, seconds: float) -> None:
        """Wait until the session does not read the recording any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self.submission is None, seconds)

    # -- on the event loop ------------------------------------------------------------------------

    async def next(self) -> Part | None:
        """The next part; None at the end, when there is a `transcript`. Raises ApiError if the recording
        fails or takes too long."""
        assert self._parts is not None, "made without a timeout"
        part = await self._parts.next()
        if part is None:
            self._session = self.submission = None  # which refer to the model
            try:
                self._result()
            except ForescribeError as error:
                raise ApiError.of(error) from error
        return part

    @property
    def transcript(self) -> Transcript:
        """The transcript, once it is there."""
        transcript = self._result().transcript
        assert transcript is not None
        return replace(transcript, warnings=(*transcript.warnings, *self.notices))

    # -- on any thread ----------------------------------------------------------------------------

    def cancel(self, reason: BaseException | None = None) -> None:
        """Free its slots before the engine's next round; a thread that waits raises `reason`."""
        with self._changed:
            self._reason = self._reason or reason
            self._changed.notify_all()
        session, submission = self._session, self.submission
        if session is not None and submission is not None and not self._ended:
            session.cancel(submission)

    def _result(self) -> Outcome:
        if self._reason is not None:
            raise self._reason
        if self._outcome is None:
            raise ForescribeError("the recording was cancelled")
        if self._outcome.error is not None:
            raise self._outcome.error
        return self._outcome
