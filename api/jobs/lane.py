"""Lane: a job's recording on its way through the session that all requests share.

    lane = Lane()
    lane.enter(session, planned(..., listener=lane, grouped=lane.grouped))
    lane.group(0)                       # waits for it; others may be done meanwhile
    lane.outcome()

Groups are decoded ahead of whoever writes them down, so the engine never waits for a disk. Knows
nothing of rows.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from forescribe.asr.errors import ForescribeError

if TYPE_CHECKING:
    from forescribe.asr.decode.outcome import Outcome
    from forescribe.asr.sessions.parts import Part
    from forescribe.asr.sessions.session import Session
    from forescribe.asr.sessions.submission import Submission
    from forescribe.asr.sessions.window_groups import Group


class Lane:
    """Listens on the engine's thread, is waited for on a job's."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._groups: dict[int, Group] = {}
        self._outcome: Outcome | None = None
        self._ended = False
        self._left: BaseException | None = None
        self._session: Session | None = None
        self._submission: Submission | None = None

    def enter(self, session: Session, submission: Submission) -> None:
        """Raises CapacityError once the session is closed."""
        self._session, self._submission = session, submission
        session.enter(submission)

    # -- on the engine's thread -------------------------------------------------------------------

    def progressed(self, part: Part) -> None:
        """Groups say more."""

    def grouped(self, group: Group) -> None:
        with self._changed:
            self._groups[group.k] = group
            self._changed.notify_all()

    def ended(self, outcome: Outcome | None) -> None:
        with self._changed:
            self._outcome, self._ended = outcome, True
            self._changed.notify_all()

    # -- on a job's thread ------------------------------------------------------------------------

    def group(self, k: int) -> Group:
        """The group, once it is there; only once. Raises what the recording has failed with, and what
        `leave` was given."""
        with self._changed:
            self._changed.wait_for(lambda: k in self._groups or self._ended or self._left)
            if k in self._groups and self._left is None:
                return self._groups.pop(k)
        raise self._reason()

    def outcome(self) -> Outcome:
        """With a transcript. Raises as `group` does."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._left)
        if self._left is None and self._outcome is not None and self._outcome.error is None:
            return self._outcome
        raise self._reason()

    def _reason(self) -> BaseException:
        if self._left is not None:
            return self._left
        if self._outcome is not None and self._outcome.error is not None:
            return self._outcome.error
        return ForescribeError("the recording ended without one of its groups")

    # -- from any thread --------------------------------------------------------------------------

    def leave(self, reason: BaseException) -> None:
        """Its rows are free before the next round; who waits is told the reason."""
        with self._changed:
            self._left = self._left or reason
            self._changed.notify_all()
        if self._session is not None and self._submission is not None and not self._ended:
            self._session.cancel(self._submission)

    def wait(self, seconds: float) -> None:
        """Until nobody reads its recording any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._session is None, seconds)
