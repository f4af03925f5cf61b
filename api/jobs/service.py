"""Jobs in a process: composition of the parts, start, periodic checks, hand-over to the next process.

    jobs = Jobs.open(settings, serving)
    jobs.start()                              # work continues where it was
    jobs.stop()                               # the next process continues the work in progress

Does not know HTTP: routes use `submissions`, `operations` and `uploads`.
"""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from forescribe.asr.errors import UsageError
from forescribe.asr.installing import how_to_install

from ..access.addresses import networks
from ..metrics import WHOLE_DATABASE
from ..settings import Settings
from ..speech.serving import Serving
from ..telemetry.job_traces import JobTraces
from ..uploads.shared_uploads import SharedUploads
from ..uploads.tus import Uploads
from ..uploads.upload_limits import UploadLimits
from ..uploads.upload_store import UploadStore
from .engines.workflow_engine import WORKFLOWS, CallStep, JobEngine, Workflow
from .execution.active_jobs import ActiveJobs
from .execution.completion import Completion
from .execution.diarization_step import DiarizationStep
from .execution.job_files import JobFiles
from .execution.outages import Outages, report_fault
from .execution.recovery import Recovery
from .execution.steps import Steps
from .execution.transcription_steps import TranscriptionSteps
from .job_metrics import JobMetrics
from .joining import check, open_store
from .operations import Operations
from .retention import RELEASE_S, Retention, wait_until
from .storage.store import Store
from .submissions import Submissions
from .webhooks import Webhooks

TICK_S = 1.0
RETENTION_TICK_S = 60.0


@dataclass(frozen=True)
class Components:
    """The classes that do the work. Fault tests replace some of them."""

    active: type[ActiveJobs] = ActiveJobs
    files: type[JobFiles] = JobFiles
    transcription: type[TranscriptionSteps] = TranscriptionSteps
    diarization: type[DiarizationStep] = DiarizationStep
    steps: type[Steps] = Steps


class Jobs:
    """The jobs of one database. `exclusive`: no other process uses it."""

    def __init__(
        self,
        settings: Settings,
        serving: Serving,
        store: Store,
        engine: JobEngine,
        *,
        exclusive: bool = True,
        webhooks: Webhooks | None = None,
        lock: BinaryIO | None = None,
        components: Components = Components(),
    ) -> None:
        self.settings, self.serving = settings, serving
        self.store, self.engine = store, engine
        self.metrics = JobMetrics(serving.metrics.registry)
        self.webhooks = webhooks or Webhooks(allowed=networks(settings.webhook_networks))
        self.uploads = _uploads(settings, store, engine)
        files = components.files(store)
        self.active = components.active(serving, store, engine.executor)
        self.completion = Completion(store, engine, self.webhooks, self.metrics)
        self.steps = components.steps(
            self.active,
            components.transcription(settings, self.active, files),
            components.diarization(self.active, files),
            self.completion,
            Outages(settings, store, self.active),
        )
        self.recovery = Recovery(
            store, engine, self.active, self.completion, self.metrics, exclusive=exclusive
        )
        self.retention = Retention(
            settings, store, engine, self.active, self.uploads, exclusive=exclusive
        )
        self.submissions = Submissions(settings, serving, store, engine)
        self.traces = JobTraces(store.database, serving.tracing)
        self.submissions.traces = self.steps.traces = self.traces
        self.operations = Operations(
            store, engine, self.active, files, self.completion, self.retention
        )
        self._lock = lock
        self._stopping, self._handing_over = threading.Event(), threading.Lock()
        self._threads = [
            threading.Thread(target=act, name=name, daemon=True)
            for name, act in (("jobs", self._tick), ("retention", self._retain))
        ]
        self._watch()

    @classmethod
    def open(cls, settings: Settings, serving: Serving) -> Jobs:
        """The jobs in the database and the folder of the settings. Raises UsageError, CapacityError."""
        try:
            from .engines.dbos_engine import ALL_QUEUES, WEBHOOKS, DbosEngine
        except ModuleNotFoundError as error:
            raise UsageError(
                f"jobs need {error.name}: {how_to_install('serve')}, or set jobs = false"
            ) from error

        folder = settings.data_folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UsageError(f"data_dir {folder}: {error.strerror}; set another") from error
        exclusive = settings.database_url is None
        # Drafts and copies of objects belong to one process, as an SQLite file does.
        lock = _locked(folder) if exclusive or settings.blobs_url is not None else None
        store = open_store(settings, folder)
        engine = DbosEngine(
            store.database.engine,
            concurrency=settings.job_concurrency,
            queues=WEBHOOKS if settings.front_end else ALL_QUEUES,
        )
        if not exclusive:
            check(store, engine.executor)
        return cls(settings, serving, store, engine, exclusive=exclusive, lock=lock)

    def start(self) -> None:
        """Resume unfinished work, and begin to work on new jobs."""
        self.store.heartbeats.beat(self.engine.executor, ())  # locks of uploads need it
        if not self.store.blobs.marked:
            self.store.references.sweep()
        self.uploads.recover()
        self.traces.create()
        self.engine.start(self.steps, {kind: self._workflow(kind) for kind in WORKFLOWS})
        for thread in self._threads:
            thread.start()

    @property
    def leaving(self) -> bool:
        """Whether the next process continues the work in progress."""
        return self._stopping.is_set()

    def ending(self) -> None:
        """Called when the process has to end: a later kill is charged to no job."""
        with suppress(Exception):  # the database may be away
            self.active.crashes.end()

    def hand_over(self) -> None:
        """Interrupt the work in progress, which the next process continues. Requests are answered until
        `stop`. Does nothing the second time."""
        with self._handing_over:
            if self._stopping.is_set():
                return
            self._stopping.set()
            self.ending()
            self.active.stop()
            for thread in self._threads:
                if (
                    thread.is_alive()
                ):  # retention may wait for object storage: the next process does it
                    thread.join(RELEASE_S)
            wait_until(lambda: not self.engine.running(), RELEASE_S)
            self.engine.stop()
            with suppress(Exception):  # the database may be away; the missing heartbeat suffices
                self.store.heartbeats.delete(self.engine.executor)

    def stop(self) -> None:
        """Hand over, and release the database and the decoded samples."""
        self.hand_over()
        self.engine.close()
        self.active.close()
        self.store.close()
        if self._lock is not None:
            self._lock.close()

    def _workflow(self, kind: str) -> Workflow:
        """The workflow of a kind; a job's holds what its steps keep in this process until it leaves."""
        workflow = WORKFLOWS[kind]

        def holding(call: CallStep, job: str, *args: str | int) -> None:
            with self.active.working(job):
                workflow(call, job, *args)

        return workflow if kind == "webhook" else holding

    def _tick(self) -> None:
        self._repeat("recovery", self.recovery.tick, TICK_S)

    def _retain(self) -> None:
        """In a thread of its own: deletions in object storage take long, and heartbeats must not wait."""
        self._repeat("retention", self.retention.erase_expired, RETENTION_TICK_S)

    def _repeat(self, name: str, act: Callable[[], None], period_s: float) -> None:
        fault = ""
        while not self._stopping.is_set():
            try:
                act()
                fault = ""
            except Exception as error:  # the database or the disk may come back
                if fault != type(error).__name__:  # log it once
                    fault = type(error).__name__
                    report_fault(name, error)
            self._stopping.wait(period_s)

    def _watch(self) -> None:
        store, watch, whole = self.store, self.metrics.watch, WHOLE_DATABASE
        watch("jobs_open", f"Jobs queued or running, {whole}.", lambda: store.jobs.backlog()[0])
        watch(
            "jobs_audio_seconds",
            f"Remaining audio of unfinished jobs, {whole}.",
            lambda: store.jobs.backlog()[1],
        )
        watch("jobs_oldest_seconds", f"Age of the oldest unfinished job, {whole}.", self._oldest_s)
        watch("disk_free_bytes", "Free space for audio and results.", lambda: store.blobs.free)
        self.metrics.count(
            "store_requests",
            "Requests to object storage, repetitions included, by kind.",
            "kind",
            lambda: store.blobs.requests,
        )

    def _oldest_s(self) -> float:
        oldest = self.store.jobs.oldest()
        return 0.0 if oldest is None else max(0.0, self.store.now() - oldest)


def _uploads(settings: Settings, store: Store, engine: JobEngine) -> UploadStore:
    """Uploads in a folder, or in the database where blobs are objects: then any replica continues one."""
    if store.blobs.marked:
        return SharedUploads(store, engine.executor, UploadLimits.of(settings))
    return Uploads(settings.data_folder / "uploads", UploadLimits.of(settings), store.now)


def _locked(folder: Path) -> BinaryIO:
    """A lock file, held while it is open: two processes on one SQLite file would take each other's work."""
    file = (folder / "lock").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise UsageError(
            f"data_dir {folder} is in use by another service: set another data_dir, or jobs = false"
        ) from error
    return file
