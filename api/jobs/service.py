"""Jobs in a process: start, hand-over to the next process, operations of clients, and retention.

    jobs = Jobs.open(settings, serving)
    jobs.start()                              # work continues where it was
    jobs.stop()                               # the next process continues the work in progress

A job of another owner is reported as unknown. Retention erases jobs, audio, keys and uploads that are older
than the settings keep them; deletion on request uses the same `erase`. Does not know HTTP: routes use
`submissions`, `operations` and `uploads`, from any thread that runs no event loop.
"""

from __future__ import annotations

import fcntl
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from forescribe.asr.errors import UsageError
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.installing import how_to_install

from ..access.addresses import networks
from ..errors import ApiError
from ..metrics import WHOLE_DATABASE
from ..settings import Settings
from ..speech.serving import Serving
from ..uploads.tus import Uploads
from .active import ActiveJobs, Outages, report_fault
from .completion import Completion, JobMetrics, Webhooks
from .corrections import ROLE as CORRECTIONS
from .corrections import CorrectedJobs
from .recovery import Recovery, join, open_store
from .steps import DiarizationStep, JobFiles, Steps, TranscriptionSteps
from .store import Store
from .submissions import Submissions
from .tables import Job, Kind, State, item_prefix, run_item
from .traces import JobTraces
from .workflows import WORKFLOWS, CallStep, JobEngine, Workflow

DRAFT_S = 3600.0
"""A draft of a blob that was not written to for so long has lost its writer."""

PERIOD_S = 30.0
"""Between two turns of retention, by whichever process takes them."""

SWEEP_S = 3600.0
"""Between two listings of object storage."""

RELEASE_S = 10.0
"""How long running work may take to let go of a job."""

TICK_S = 1.0
"""Between two checks of the work in progress."""

ID = re.compile(r"job_[0-9a-f]{32}")

RETENTION_TICK_S = 60.0
"""Between two looks at what has expired."""


@dataclass(frozen=True)
class Components:
    """The classes that do the work. Fault tests replace some of them (`tests/faults`)."""

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
        self.metrics = JobMetrics(serving.metrics)
        self.webhooks = webhooks or Webhooks(allowed=networks(settings.webhook_networks))
        self.uploads = Uploads(settings.data_folder / "uploads", settings, store.now)
        self.traces = JobTraces(store.database, serving.tracing)
        files = components.files(store)
        self.active = components.active(serving, store, engine.executor)
        self.completion = Completion(store, engine, self.webhooks, self.metrics)
        self.steps = components.steps(
            self.active,
            components.transcription(settings, self.active, files),
            components.diarization(self.active, files),
            self.completion,
            Outages(settings, store, self.active),
            self.traces,
        )
        self.recovery = Recovery(
            store, engine, self.active, self.completion, self.metrics, exclusive=exclusive
        )
        self.retention = Retention(
            settings, store, engine, self.active, self.uploads, exclusive=exclusive
        )
        self.submissions = Submissions(settings, serving, store, engine, self.traces)
        self.operations = Operations(
            store, engine, self.active, files, self.completion, self.retention
        )
        self.corrected = CorrectedJobs(
            store,
            files,
            self.operations.get,
            self.operations.transcript,
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
            from .dbos_engine import ALL_QUEUES, WEBHOOKS, DbosEngine
        except ModuleNotFoundError as error:
            raise UsageError(
                f"jobs need {error.name}: {how_to_install('serve')}, or set jobs = false"
            ) from error

        folder = settings.made_data_folder()
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
            join(store, engine.executor)
        return cls(settings, serving, store, engine, exclusive=exclusive, lock=lock)

    def start(self) -> None:
        """Resume unfinished work, and begin to work on new jobs."""
        self.store.heartbeats.beat(self.engine.executor, ())
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
                if thread.is_alive():
                    # Retention may wait for object storage: the next process does it.
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
        store, metrics, whole = self.store, self.serving.metrics, WHOLE_DATABASE
        watch = metrics.watch
        watch("jobs_open", f"Jobs queued or running, {whole}.", lambda: store.jobs.backlog()[0])
        watch(
            "jobs_audio_seconds",
            f"Remaining audio of unfinished jobs, {whole}.",
            lambda: store.jobs.backlog()[1],
        )
        watch("jobs_oldest_seconds", f"Age of the oldest unfinished job, {whole}.", self._oldest_s)
        watch("disk_free_bytes", "Free space for audio and results.", lambda: store.blobs.free)
        metrics.count(
            "store_requests",
            "Requests to object storage, repetitions included, by kind.",
            "kind",
            lambda: store.blobs.requests,
        )

    def _oldest_s(self) -> float:
        oldest = self.store.jobs.oldest()
        return 0.0 if oldest is None else max(0.0, self.store.now() - oldest)


class Operations:
    """What the routes do with jobs that were submitted before."""

    def __init__(
        self,
        store: Store,
        engine: JobEngine,
        active: ActiveJobs,
        files: JobFiles,
        completion: Completion,
        retention: Retention,
    ) -> None:
        self.store, self.engine, self.active = store, engine, active
        self.files, self.completion, self.retention = files, completion, retention

    def get(self, id: str, owner: str) -> Job:
        """Raises ApiError `job_not_found`."""
        # The form of an id is checked first: databases refuse some characters.
        job = self.store.jobs.get(id, owner) if ID.fullmatch(id) else None
        if job is None:
            raise ApiError("job_not_found", "there is no such job")
        return job

    def transcript(self, id: str, owner: str) -> Transcript:
        """Raises ApiError: `in_progress` before the end, `not_found` if there is no result."""
        job = self.get(id, owner)
        name = self.store.references.get(id, "result")
        if name is not None:
            return self.files.transcript(name)
        if job.ended:
            raise ApiError("not_found", f"the job is {job.state}: it has no result")
        raise ApiError("in_progress", f"the job is {job.state}", retry_after=5)

    def audio(self, id: str, owner: str) -> Path:
        """The file that was uploaded, to be opened at once. Raises ApiError `not_found` if it is not kept
        any more."""
        self.get(id, owner)
        name = self.store.references.get(id, "audio")
        try:
            if name is not None:
                return self.store.blobs.local(name)
        except FileNotFoundError:
            pass  # deleted meanwhile
        raise _no_audio()

    def cancel(self, id: str, owner: str) -> Job:
        """End a job, whatever its work still does; a job that has ended stays as it is."""
        job = self.get(id, owner)
        with self.store.transaction() as tx:
            if self.store.jobs.current(tx, id, job.run) is not None:
                # The transcript that a diarization was to change still exists.
                state: State = "succeeded" if job.kind == "diarize" else "cancelled"
                self.completion.end(tx, job, state)
        self.engine.cancel(run_item(id, job.run, job.kind).id)
        self.active.abandon(id)
        return self.get(id, owner)

    def retry(self, id: str, owner: str) -> Job:
        """Queue a failed or cancelled job again; decoded groups are kept. Raises ApiError `conflict`."""
        return self._new_run(id, owner, ("failed", "cancelled"), "transcribe", {})

    def diarize(self, id: str, owner: str, num_speakers: int | None) -> Job:
        """Assign new speakers to the same words. Raises ApiError: `conflict`, also while there are
        corrections, which would be lost; `not_found`."""
        options = {"diarize": True, "num_speakers": num_speakers}
        return self._new_run(id, owner, ("succeeded",), "diarize", options)

    def delete(self, id: str, owner: str) -> None:
        """Cancel a job and erase its audio, text and rows."""
        job = self.get(id, owner)
        if not job.ended:
            self.cancel(id, owner)
        self.retention.erase(id)

    def _new_run(
        self, id: str, owner: str, states: tuple[State, ...], kind: Kind, options: Mapping[str, Any]
    ) -> Job:
        job = self.get(id, owner)
        if job.state not in states:
            text = f"the job is {job.state}, not {' or '.join(states)}"
            raise ApiError("conflict", text)
        if self.store.references.get(id, "audio") is None:
            raise _no_audio()
        with self.store.transaction() as tx:
            if self.store.references.last_in(tx, id, CORRECTIONS) is not None:
                text = "the text has corrections, which belong to its speakers: delete them first"
                raise ApiError("conflict", f"{text} (DELETE /v1/jobs/{{id}}/corrections)")
            if options:
                merged = {k: v for k, v in {**job.options, **options}.items() if v is not None}
                self.store.jobs.set_options(tx, id, merged)
            queued = self.store.jobs.new_run(tx, id, kind)
            self.engine.enqueue(tx, run_item(id, queued.run, kind))
        return queued


class Retention:
    """Erases jobs, completely: rows, files, queued work and SQLite's log."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        engine: JobEngine,
        active: ActiveJobs,
        uploads: Uploads,
        *,
        exclusive: bool = True,
    ) -> None:
        self.settings, self.store, self.engine = settings, store, engine
        self.active, self.uploads, self.exclusive = active, uploads, exclusive

    def erase_expired(self) -> None:
        """Erase everything that is older than the settings keep it. One process of a database does it for
        all; each removes its own local files."""
        now, settings, store = self.store.now(), self.settings, self.store
        store.blobs.sweep(DRAFT_S)
        self.uploads.expire(settings.upload_retention_s)
        if not self.exclusive and not store.turns.take("retention", PERIOD_S):
            return
        store.references.delete_condemned()
        for id in store.jobs.with_audio_succeeded_before(now - settings.audio_retention_s):
            store.references.drop(id, "audio")
        for id in store.jobs.ended_before(now - settings.result_retention_s):
            self.erase(id)
        store.keys.delete_before(now - settings.idempotency_retention_s)
        if store.blobs.marked and store.turns.take("objects", SWEEP_S):
            store.references.sweep_objects()

    def erase(self, id: str) -> None:
        """Erase a job that has ended."""
        self.active.abandon(id)
        prefix = item_prefix(id)
        wait_until(
            lambda: not any(item.startswith(prefix) for item in self.engine.running()), RELEASE_S
        )
        self.store.erase(id)
        self.engine.forget(id)
        self.store.database.truncate_log()


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until the condition holds, at most `seconds`."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)


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


def _no_audio() -> ApiError:
    return ApiError("not_found", "the job's audio is not kept any more")
