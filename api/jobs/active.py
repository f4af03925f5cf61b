"""What this process holds of the jobs that it works on: samples, and slots of the session.

    samples = active.samples(job, files.audio)
    active.check(job)                    # raises if the job is not to be continued
    active.release(job)                  # frees its samples and its slots

`Outages` waits while a database or object storage is away or a disk is full: no job's fault, and no attempt
of it. Knows the session and the decoders; does not know rows of jobs or the order of steps.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.exc import DBAPIError

from forescribe.asr.errors import ForescribeError, OutputError

from ..http.errors import place_of
from ..settings import Settings
from ..speech.serving import Serving
from .decoded_groups import DecodedGroups
from .store import Store
from .suspects import CrashTracker
from .workflows import RunReplaced, Stopping

if TYPE_CHECKING:
    from forescribe.asr.audio.inputs import DecodedFile
    from forescribe.asr.decode.session import Session


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


class ActiveJobs:
    """The samples and session listeners of jobs, by id."""

    def __init__(self, serving: Serving, store: Store, executor: str) -> None:
        self.serving = serving
        self.stopping = threading.Event()
        self.crashes = CrashTracker(store, executor)
        self._lock = threading.Lock()
        self._groups: dict[str, DecodedGroups] = {}
        self._samples: dict[str, DecodedFile] = {}
        self._abandoned: set[str] = set()
        self._workflows: Counter[str] = Counter()  # executions of each job in this process
        self._closed = False

    @contextmanager
    def working(self, job: str) -> Iterator[None]:
        """Execute a workflow of the job in the block. When the job's last one leaves, everything that the
        job holds here is freed.

        A step frees it when it ends the run. But an engine may also end a workflow between two steps,
        because it was cancelled or because another process owns it now; no step of it is called then.
        """
        with self.serving.idle.hold():
            with self._lock:
                self._workflows[job] += 1
            try:
                yield
            finally:
                with self._lock:
                    self._workflows[job] -= 1
                    last = not self._workflows[job]
                    if last:
                        del self._workflows[job]
                if last:
                    self.release(job)

    def begin(self, job: str) -> None:
        """A run of the job begins: an earlier `abandon` does not count for it."""
        with self._lock:
            self._abandoned.discard(job)

    def check(self, job: str) -> None:
        """Raises Stopping or RunReplaced if the job is not to be continued."""
        if self.stopping.is_set():
            raise Stopping
        if job in self._abandoned:
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

    def samples(
        self, job: str, audio: Callable[[str], AbstractContextManager[Path]]
    ) -> DecodedFile:
        """The decoded samples of a job, kept until `release`; `audio` provides its file. Raises Stopping
        if there is no session, and after `close`."""
        with self._lock:
            known = self._samples.get(job)
        if known is not None:
            return known
        self.session()  # decoding while a model is still loading would slow both
        with audio(job) as path, path.open("rb") as file:
            decoded = asyncio.run(self.serving.decoded(file))
        with self._lock:
            known = self._samples.get(job)  # another step of the job may have been faster
            if known is None and not self._closed:
                self._samples[job] = decoded
                return decoded
        decoded.close()
        if known is None:
            raise Stopping
        return known

    def groups(self, job: str) -> DecodedGroups | None:
        with self._lock:
            return self._groups.get(job)

    def set_groups(self, job: str, groups: DecodedGroups) -> None:
        with self._lock:
            self._groups[job] = groups

    def release(self, job: str) -> None:
        """Free the job's slots in the session and its samples."""
        with self._lock:
            groups, samples = self._groups.pop(job, None), self._samples.pop(job, None)
        if groups is not None:
            groups.cancel(RunReplaced())
            groups.wait_until_released(RELEASE_S)
        if samples is not None:
            samples.close()
        self.crashes.withdraw(job)

    def abandon(self, job: str) -> None:
        """End the current run's steps, and free the job's slots before the engine's next round."""
        with self._lock:
            self._abandoned.add(job)
            groups = self._groups.get(job)
        if groups is not None:
            groups.cancel(RunReplaced())

    def stop(self) -> None:
        """End all waiting steps without an answer."""
        self.stopping.set()
        with self._lock:
            active = list(self._groups.values())
        for groups in active:
            groups.cancel(Stopping())

    def close(self) -> None:
        """Close all samples, including those of jobs that ended between two steps."""
        with self._lock:
            self._closed = True
            held, self._samples = list(self._samples.values()), {}
        for samples in held:
            samples.close()


class Outages:
    """Waits for the database and the disks. All methods raise Stopping when the process ends."""

    def __init__(self, settings: Settings, store: Store, active: ActiveJobs) -> None:
        self.settings, self.store, self.active = settings, store, active

    def wait_for_database(self, job: str | None, act: Callable[[], T]) -> T:
        """The result of `act`, repeated while the database goes away. `job`: the one that `act` works on,
        which holds nothing meanwhile; None if it only reads about one, whose run may be in progress."""
        while True:
            try:
                return act()
            except DBAPIError as error:
                if not self.store.database.lost(error):
                    raise
                report_fault("database", error)
            if job is not None:
                self.active.release(job)  # groups that are not stored yet are decoded again
            while not self.store.database.available():
                self.active.pause(AWAY_S)

    def wait_for_storage(self, job: str | None, act: Callable[[], T]) -> T:
        """As `wait_for_database`, also while nothing can be written."""
        while True:
            try:
                return self.wait_for_database(job, act)
            except OutputError as error:
                report_fault("storage", error)
            self.wait_for_room()

    def wait_for_room(self, check: Callable[[], None] = lambda: None) -> None:
        """Wait until there is room on the disks. Raises what `check` raises."""
        while True:
            self.active.pause(AWAY_S)
            check()
            if self._room():
                return

    def caused(self, error: ForescribeError) -> bool:
        """Whether an error comes from object storage that is away, or from a disk that is still full or
        read-only."""
        return error.code in AWAY or (error.code in STORAGE and not self._room())

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
