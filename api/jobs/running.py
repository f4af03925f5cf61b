"""What a process holds of a job that it works on: its claim, its samples, and its place in the session.

    run = Run(job, claim, serving, stopping)
    run.check()                          # raises if the job is not to be continued
    run.release()                        # frees its samples and its slots

`DecodedGroups` hands its groups from the engine's thread to the job's. `Outages` waits while a database or
object storage is away or a disk is full: no job's fault, and no attempt of it.

`Stopping` and `RunReplaced` end the work on a job. Neither is an Exception, so that code which handles errors
lets them pass. Does not know rows of jobs or the order of steps.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.exc import DBAPIError

from forescribe.asr.errors import ForescribeError, OutputError

from ..settings import Settings
from ..speech.serving import NAME, Serving
from ..telemetry import place_of
from .store import Store
from .tables import Claim, Job

if TYPE_CHECKING:
    from forescribe.asr.audio.inputs import DecodedFile
    from forescribe.asr.decode.driver import Session
    from forescribe.asr.decode.options import Options, Outcome, Part, PhaseTimes
    from forescribe.asr.decode.planned import Group
    from forescribe.asr.segment.cut_plan import Plan


POLL_S = 0.1
"""How often a job that waits for the engine looks whether it goes on."""

RELEASE_S = 10.0
"""How long to wait for the engine's round and the reader's block in which a recording is cancelled."""

STORAGE = frozenset({"storage_full", "unwritable_output"})
AWAY = frozenset({"storage_unavailable", "storage_denied"})
"""Codes of object storage that does not answer, throttles, or does not accept the credentials (any more)."""

MIN_FREE_BYTES = 4 << 20
"""With less a disk counts as full, whatever the settings say."""

AWAY_S = 1.0
"""Seconds between checks of a database or a disk that is away."""

log = logging.getLogger("forescribe.api")

T = TypeVar("T")


class Stopping(BaseException):
    """The process is ending: the next one continues the job."""


class RunReplaced(BaseException):
    """The run is not the job's current one, or another process has it: its results are dropped."""


class Run:
    """A job that this process works on. Only `abandon` is for other threads than the job's own."""

    def __init__(
        self,
        job: Job,
        claim: Claim,
        serving: Serving,
        stopping: threading.Event,
        *,
        alone: bool = False,
    ) -> None:
        self.job, self.claim = job, claim
        self.serving, self.stopping = serving, stopping
        self.alone = alone
        """Whether it is the only job of this process, until it progresses."""
        self.entered = False
        """Whether a death of the process is charged to it."""
        self.samples: DecodedFile | None = None
        self.groups: DecodedGroups | None = None
        self._abandoned = False

    @property
    def id(self) -> str:
        return self.job.id

    def check(self) -> None:
        """Raises Stopping or RunReplaced if the job is not to be continued."""
        if self.stopping.is_set():
            raise Stopping
        if self._abandoned:
            raise RunReplaced

    def pause(self, seconds: float) -> None:
        """Raises Stopping if the process ends meanwhile."""
        if self.stopping.wait(seconds):
            raise Stopping

    def session(self) -> Session:
        """The session, once the model is loaded. If the engine is broken, waits for the end of the process,
        because the next one continues. Raises Stopping if there will be no session."""
        serving = self.serving
        while serving.state in ("loading", "broken", "failed") or (
            serving.open and serving.session is None and serving.idle.unloaded
        ):
            serving.idle.want()
            self.pause(POLL_S)
        session = serving.session
        if not serving.open or session is None:
            raise Stopping
        return session

    def release(self) -> None:
        """Free the job's slots in the session and its samples."""
        groups, self.groups = self.groups, None
        if groups is not None:
            groups.cancel(RunReplaced())
            groups.wait_until_released(RELEASE_S)
        samples, self.samples = self.samples, None
        if samples is not None:
            samples.close()

    def abandon(self, reason: type[BaseException] = RunReplaced) -> None:
        """End the work on the job, and free its slots before the engine's next round."""
        self._abandoned, groups = True, self.groups
        if groups is not None:
            groups.cancel(reason())


class DecodedGroups:
    """A recording in the session, by its plan after the groups in `kept`, that another thread can wait for:
    groups are decoded ahead of the thread that stores them, so the engine never waits for a disk. `phases`
    gets the times of the engine's work.

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


class Outages:
    """Waits for the database and the disks. All methods raise Stopping when the process ends."""

    def __init__(self, settings: Settings, store: Store, stopping: threading.Event) -> None:
        self.settings, self.store, self.stopping = settings, store, stopping

    def wait_for_database(self, run: Run | None, act: Callable[[], T]) -> T:
        """The result of `act`, repeated while the database goes away; the run holds nothing meanwhile."""
        while True:
            try:
                return act()
            except DBAPIError as error:
                if not self.store.database.lost(error):
                    raise
                report_fault("database", error)
            if run is not None:
                run.release()  # groups that are not stored yet are decoded again
            while not self.store.database.available():
                self._pause()

    def wait_for_storage(self, run: Run | None, act: Callable[[], T]) -> T:
        """As `wait_for_database`, also while nothing can be written."""
        while True:
            try:
                return self.wait_for_database(run, act)
            except OutputError as error:
                report_fault("storage", error)
            self.wait_for_room()

    def wait_for_room(self, check: Callable[[], None] = lambda: None) -> None:
        """Wait until there is room on the disks. Raises what `check` raises."""
        while True:
            self._pause()
            check()
            if self._room():
                return

    def caused(self, error: ForescribeError) -> bool:
        """Whether an error comes from object storage that is away, or from a disk that is still full or
        read-only."""
        return error.code in AWAY or (error.code in STORAGE and not self._room())

    def _pause(self) -> None:
        if self.stopping.wait(AWAY_S):
            raise Stopping

    def _room(self) -> bool:
        minimum = max(self.settings.min_free_bytes, MIN_FREE_BYTES)
        return (
            self.store.blobs.free >= minimum
            and shutil.disk_usage(tempfile.gettempdir()).free >= MIN_FREE_BYTES
            and self.store.writable()
        )


def report_fault(where: str, error: Exception) -> None:
    """Log the type and the place of an error. Its message may contain text of a transcript."""
    entry = {"event": "job_fault", "in": where, "error": type(error).__name__}
    log.error(json.dumps({**entry, "place": place_of(error)}))
