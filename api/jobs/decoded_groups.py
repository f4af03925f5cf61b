"""`DecodedGroups` hands the groups of a job from the engine's thread to the job's.

They are decoded ahead of the thread that stores them, so the engine never waits for a disk. A module of its
own, because the process and a suspect's child use it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forescribe.asr.errors import ForescribeError

from ..speech.serving import NAME

if TYPE_CHECKING:
    from forescribe.asr.audio.inputs import DecodedFile
    from forescribe.asr.decode.options import Options, Outcome, PhaseTimes
    from forescribe.asr.decode.parts import Part
    from forescribe.asr.decode.planned import Group
    from forescribe.asr.decode.session import Session
    from forescribe.asr.segment.cut_plan import Plan


class DecodedGroups:
    """A recording in the session, by its plan after the groups in `kept`, that another thread can wait for.
    `phases` gets the times of the engine's work.

    groups = DecodedGroups(session, samples, options, plan, kept)
    groups.submit()
    groups.wait_for(0)                  # other groups may be finished before it
    groups.outcome()
    """

    def __init__(
        self,
        session: Session,
        samples: DecodedFile,
        options: Options,
        plan: Plan,
        kept: Sequence[Group],
        phases: PhaseTimes | None = None,
    ) -> None:
        from forescribe.asr.decode.planned import planned

        self._changed = threading.Condition()
        self._groups: dict[int, Group] = {}
        self._outcome: Outcome | None = None
        self._ended = False
        self._reason: BaseException | None = None  # of a cancellation
        self._session, self.phases, self._submitted = session, phases, False
        self._submission = planned(
            session.context,
            samples,
            options,
            self,
            plan=plan,
            kept=kept,
            grouped=self.grouped,
            arrived_s=session.clock(),
            name=NAME,
        )
        self._submission.time_phases(phases)

    def submit(self) -> None:
        """Queue the recording. Raises CapacityError if the session is closed."""
        self._submitted = True
        self._session.enter(self._submission)

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
        if self._submitted and not self._ended:
            self._session.cancel(self._submission)

    def wait_until_released(self, seconds: float) -> None:
        """Wait until the session does not read the recording any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or not self._submitted, seconds)
