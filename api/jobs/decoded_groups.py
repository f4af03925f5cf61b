"""`DecodedGroups` hands the groups of a job from the engine's thread to the job's.

They are decoded ahead of the thread that stores them, so the engine never waits for a disk. A module of its
own, because the process and a suspect's child use it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from forescribe.asr.errors import ForescribeError

if TYPE_CHECKING:
    from forescribe.asr.decode.options import Outcome, PhaseTimes
    from forescribe.asr.sessions.parts import Part
    from forescribe.asr.sessions.planned import Group
    from forescribe.asr.sessions.session import Session
    from forescribe.asr.sessions.submission import Submission


class DecodedGroups:
    """A listener of the session that another thread can wait for.

    groups = DecodedGroups()
    groups.submit(session, planned(..., listener=groups, grouped=groups.grouped))
    groups.wait_for(0)                  # other groups may be finished before it
    groups.outcome()
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._groups: dict[int, Group] = {}
        self._outcome: Outcome | None = None
        self._ended = False
        self._reason: BaseException | None = None  # of a cancellation
        self._session: Session | None = None
        self._submission: Submission | None = None
        self.phases: PhaseTimes | None = None

    def submit(self, session: Session, submission: Submission) -> None:
        """Queue the recording. Raises CapacityError if the session is closed."""
        self._session, self._submission = session, submission
        submission.time_phases(self.phases)
        session.enter(submission)

    # -- on the engine's thread -------------------------------------------------------------------

    def progressed(self, part: Part) -> None:
        """Ignored: `grouped` receives the same text with more detail."""

    def grouped(self, group: Group) -> None:
        with self._changed:
            self._groups[group.k] = group
            self._changed.notify_all()

    def ended(self, outcome: Outcome | None) -> None:
        with self._changed:
            self._outcome, self._ended = outcome, True
            self._changed.notify_all()

    # -- on the job's thread ----------------------------------------------------------------------

    def wait_for(self, k: int) -> Group:
        """Group `k`, once it is decoded; it is returned only once. Raises the error of the recording, or
        the reason given to `cancel`."""
        with self._changed:
            self._changed.wait_for(lambda: k in self._groups or self._ended or self._reason)
            if k in self._groups and self._reason is None:
                return self._groups.pop(k)
        raise self._error()

    def outcome(self) -> Outcome:
        """The outcome with its transcript. Raises as `wait_for` does."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._reason)
        if self._reason is None and self._outcome is not None and self._outcome.error is None:
            return self._outcome
        raise self._error()

    def _error(self) -> BaseException:
        if self._reason is not None:
            return self._reason
        if self._outcome is not None and self._outcome.error is not None:
            return self._outcome.error
        return ForescribeError("the recording ended without one of its groups")

    # -- from any thread --------------------------------------------------------------------------

    def cancel(self, reason: BaseException) -> None:
        """Free the recording's slots before the next round; the waiting thread raises `reason`."""
        with self._changed:
            self._reason = self._reason or reason
            self._changed.notify_all()
        if self._session is not None and self._submission is not None and not self._ended:
            self._session.cancel(self._submission)

    def wait_until_released(self, seconds: float) -> None:
        """Wait until the session does not read the recording any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._session is None, seconds)
