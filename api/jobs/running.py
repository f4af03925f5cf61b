"""What a process holds of a job that it works on: its claim, its samples, and its place in the session.

    run = Run(job, claim, serving, stopping)
    run.check()                          # raises if the job is not to be continued
    run.release()                        # frees its samples and its slots

`Outages` waits while a database or object storage is away or a disk is full: no job's fault, and no attempt
of it.

`Stopping` and `RunReplaced` end the work on a job. Neither is an Exception, so that code which handles errors
lets them pass. Does not know rows of jobs or the order of steps.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.exc import DBAPIError

from forescribe.asr.errors import ForescribeError, OutputError

from ..errors import ApiError
from ..settings import Settings
from ..speech.decoding import Decoding
from ..speech.serving import Serving
from ..telemetry import place_of
from .store import Store
from .tables import Claim, Job

if TYPE_CHECKING:
    from forescribe.asr.audio.inputs import DecodedFile
    from forescribe.asr.decode.driver import Session


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

    def __init__(self, job: Job, claim: Claim, serving: Serving, stopping: threading.Event) -> None:
        self.job, self.claim = job, claim
        self.serving, self.stopping = serving, stopping
        self.alone = False
        """Whether this process has nothing else in hand, until the job progresses."""
        self.samples: DecodedFile | None = None
        self.groups: Decoding | None = None
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
        serving, life = self.serving, self.serving.life
        while life.state in ("loading", "broken", "failed") or (
            life.open and serving.session is None and serving.idle.unloaded
        ):
            serving.idle.want()
            self.pause(POLL_S)
        session = serving.session
        if not life.open or session is None:
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


class Outages:
    """What is no job's fault: a database or object storage that is away, a disk that is full or read-only."""

    def __init__(self, settings: Settings, store: Store, stopping: threading.Event) -> None:
        self.settings, self.store, self.stopping = settings, store, stopping

    def caused(self, error: Exception) -> bool:
        if isinstance(error, DBAPIError):
            return self.store.database.lost(error)
        code = error.code if isinstance(error, (ForescribeError, ApiError)) else None
        return code in AWAY or (code in STORAGE and not self._writable())

    def wait(self, check: Callable[[], None] = lambda: None) -> None:
        """Wait until all of them can be written. Raises Stopping when the process ends, and what `check`
        raises."""
        while True:
            if self.stopping.wait(AWAY_S):
                raise Stopping
            check()
            if self._writable():
                return

    def insist(self, act: Callable[[], T]) -> T:
        """The result of `act`, repeated while nothing can be written."""
        while True:
            try:
                return act()
            except (DBAPIError, OutputError) as error:
                if isinstance(error, DBAPIError) and not self.caused(error):
                    raise
                report_fault("storage", error)
            self.wait()

    def _writable(self) -> bool:
        minimum = max(self.settings.min_free_bytes, MIN_FREE_BYTES)
        return (
            self.store.files.free >= minimum
            and shutil.disk_usage(tempfile.gettempdir()).free >= MIN_FREE_BYTES
            and self.store.writable()
        )


def report_fault(where: str, error: Exception) -> None:
    """Log the type and the place of an error. Its message may contain text of a transcript."""
    entry = {"event": "job_fault", "in": where, "error": type(error).__name__}
    log.error(json.dumps({**entry, "place": place_of(error)}))
