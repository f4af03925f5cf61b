"""Jobs: what the routes ask of them, and their life in the process.

    jobs = Jobs.of(settings, serving)
    jobs.start()                              # work goes on where it was
    job = jobs.submit(new, audio, key)        # a promise: audio and parameters are on disk
    jobs.stop()                               # what is under way goes on in the next process

May be called from any thread that runs no event loop.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from sqlalchemy.exc import IntegrityError

from forescribe.asr.errors import UsageError
from forescribe.asr.formats.transcript import Transcript

from ..access import outbound
from ..errors import ApiError
from ..settings import Settings
from ..speech.serving import Serving
from ..uploads.tus import Uploads
from .blobs import Draft
from .engines.workflow_engine import PLAYS, JobEngine
from .job_metrics import JobMetrics
from .keeper import Keeper
from .records import Job, New, prefix, run_of
from .steps import Steps, report
from .store import Store
from .webhooks import Webhooks

TICK_S = 1.0
TIDY_S = 60.0
DRAFTS_S = 3600.0
"""A draft that nobody has written to for so long is nobody's."""

PATIENCE_S = 10.0
"""For work to let go of a job that is to be erased."""


@dataclass(frozen=True)
class Key:
    """A client's word that two requests are one, and what tells whether they are."""

    text: str
    fingerprint: str


class Jobs:
    """The jobs of one database. `alone`: no other process has it."""

    def __init__(
        self,
        settings: Settings,
        serving: Serving,
        store: Store,
        engine: JobEngine,
        *,
        alone: bool = True,
        webhooks: Webhooks | None = None,
        uploads: Uploads | None = None,
        lock: BinaryIO | None = None,
        steps: type[Steps] = Steps,
    ) -> None:
        self.settings, self.serving = settings, serving
        self.store, self.engine = store, engine
        self.metrics = JobMetrics(serving.metrics.registry)
        self.webhooks = webhooks or Webhooks(allowed=outbound.networks(settings.webhook_networks))
        self.uploads = uploads or Uploads(
            settings.data_folder / "uploads", settings.max_upload_bytes, store.clock
        )
        self.steps = steps(settings, serving, store, engine, self.webhooks, self.metrics)
        self.keeper = Keeper(store, engine, self.steps, self.metrics, alone=alone)
        self.claims: set[tuple[str, str]] = set()  # keys whose upload is still coming in
        self._lock = lock
        self._stopping, self._handing = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._keep, name="jobs", daemon=True)
        self._watch()

    @classmethod
    def of(cls, settings: Settings, serving: Serving) -> Jobs:
        """With the database and the folder that the settings name. Raises UsageError."""
        try:
            from .engines.dbos_engine import Durable
        except ModuleNotFoundError as error:
            raise UsageError(
                f"jobs need {error.name}: run `scripts/setup serve` in forescribe's folder, "
                "or set jobs = false"
            ) from error

        folder = settings.data_folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UsageError(f"data_dir {folder}: {error.strerror}; set another") from error
        alone = settings.database_url is None
        lock = _locked(folder) if alone else None
        store = Store.at(folder, settings.database_url)
        engine = Durable(store.engine, concurrency=settings.job_concurrency)
        return cls(settings, serving, store, engine, alone=alone, lock=lock)

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Takes up what was left, and what comes in from now on."""
        self.store.sweep()
        self.uploads.recover()
        self.engine.start(self.steps, PLAYS)
        self._thread.start()

    @property
    def leaving(self) -> bool:
        """Whether the next process goes on with what is under way."""
        return self._stopping.is_set()

    def ending(self) -> None:
        """The process is told to end: whoever kills it from here on kills no job's process."""
        with suppress(Exception):  # the database may be away
            self.steps.inside.end()

    def hand_over(self) -> None:
        """Leaves what is under way as it is: the next process goes on with it. What clients ask is
        answered until `stop`. Does nothing the second time."""
        with self._handing:
            if self._stopping.is_set():
                return
            self._stopping.set()
            self.ending()
            self.steps.stop()
            if self._thread.is_alive():
                self._thread.join()
            _until(lambda: not self.engine.running(), PATIENCE_S)
            self.engine.stop()
            with suppress(Exception):  # the database may be away; a beat less is seen soon enough
                self.store.bury(self.engine.executor)

    def stop(self) -> None:
        """Hands over, and lets go of the database."""
        self.hand_over()
        self.engine.close()
        self.store.close()
        if self._lock is not None:
            self._lock.close()

    def _keep(self) -> None:
        tidied, fault = -TIDY_S, ""
        while not self._stopping.is_set():
            try:
                self.keeper.tick()
                if time.monotonic() - tidied >= TIDY_S:
                    self.tidy()
                    tidied = time.monotonic()
                fault = ""
            except Exception as error:  # a database that is away comes back, a full disk too
                if fault != type(error).__name__:  # said once
                    fault = type(error).__name__
                    report("keeper", error)
            self._stopping.wait(TICK_S)

    def tidy(self) -> None:
        """Erases what is older than the settings keep it."""
        now, settings = self.store.clock(), self.settings
        for id in self.store.heard_before(now - settings.audio_retention_s):
            self.store.drop(id, "audio")
        for id in self.store.ended_before(now - settings.result_retention_s):
            self._erase(id)
        self.store.forget_keys(now - settings.idempotency_retention_s)
        self.store.blobs.sweep(DRAFTS_S)
        self.uploads.expire(settings.upload_retention_s)

    # -- from the routes --------------------------------------------------------------------------

    def check(self, tenant: str, *, keyed: bool) -> None:
        """Whether one more job may come in, before its audio does. Raises ApiError."""
        settings = self.settings
        self.check_room()
        count, seconds = self.store.waiting_s()
        if seconds >= settings.max_queued_jobs_s:
            raise ApiError("overloaded", "the queue of jobs is full", retry_after=60)
        if keyed:
            count, _ = self.store.waiting_s(tenant)
        if keyed and count >= settings.max_jobs_per_key:
            text = f"this key has {count} jobs open, its most"
            raise ApiError("rate_limited", text, retry_after=60)

    def check_room(self) -> None:
        """Raises ApiError `storage_full` with less than `min_free_bytes` on the disk."""
        if self.store.blobs.free < self.settings.min_free_bytes:
            raise ApiError("storage_full", "the server has no room for the upload")

    def submit(self, new: New, audio: Draft, key: Key | None = None) -> Job:
        """The job, once all of it is on disk; an earlier one where the key says that it is the same.

        Raises ApiError `idempotency_key_reused`, OutputError where the disk is full.
        """
        store, form = self.store, json.dumps(dict(new.form)).encode()
        audio.flush()
        try:
            with store.blobs.keeping():
                heard, asked = audio.commit(), store.blobs.put(form)
                with store.writing() as tx:
                    if key is not None:
                        store.claim(tx, new.tenant, key.text, key.fingerprint, new.id)
                    job = store.insert(tx, new)
                    store.refer(tx, job.id, "audio", heard)
                    store.refer(tx, job.id, "form", asked)
                    self.engine.enqueue(tx, run_of(job.id, job.run, job.kind))
            return job
        except IntegrityError:
            store.collect([heard, asked])
            before = None if key is None else self.claimed(new.tenant, key)
            if before is None:
                raise
            return before

    def claimed(self, tenant: str, key: Key) -> Job | None:
        """The job that this key has made. Raises ApiError where it was for another request."""
        found = self.store.claimed(tenant, key.text)
        if found is None:
            return None
        fingerprint, id = found
        if fingerprint != key.fingerprint:
            text = "this Idempotency-Key came with another request before"
            raise ApiError("idempotency_key_reused", text)
        return self.store.job(id, tenant)

    def job(self, id: str, tenant: str) -> Job:
        """Raises ApiError `job_not_found`, also for somebody else's."""
        job = self.store.job(id, tenant)
        if job is None:
            raise _unknown()
        return job

    def cancel(self, id: str, tenant: str) -> Job:
        """Ended from here on, whatever its work still does; a job that has ended stays as it is."""
        job = self.job(id, tenant)
        with self.store.writing() as tx:
            if self.store.mine(tx, id, job.run) is not None:
                # The transcript that a diarization was to change is still there.
                state = "succeeded" if job.kind == "diarize" else "cancelled"
                self.steps.end(tx, job, state)
        self.engine.cancel(run_of(id, job.run, job.kind).id)
        self.steps.leave(id)
        return self.job(id, tenant)

    def retry(self, id: str, tenant: str) -> Job:
        """A failed or cancelled job goes on behind what it has. Raises ApiError `conflict`."""
        return self._again(id, tenant, ("failed", "cancelled"), "transcribe")

    def diarize(self, id: str, tenant: str, num_speakers: int | None) -> Job:
        """New speakers on the same words. Raises ApiError: `conflict`, `not_found`."""
        return self._again(
            id, tenant, ("succeeded",), "diarize", {"diarize": True, "num_speakers": num_speakers}
        )

    def _again(
        self,
        id: str,
        tenant: str,
        states: tuple[str, ...],
        kind: Any,
        options: Mapping[str, Any] | None = None,
    ) -> Job:
        job = self.job(id, tenant)
        if job.state not in states:
            text = f"the job is {job.state}, not {' or '.join(states)}"
            raise ApiError("conflict", text)
        if self.store.ref(id, "audio") is None:
            raise ApiError("not_found", "the job's audio is not kept any more")
        with self.store.writing() as tx:
            if options is not None:
                told = {k: v for k, v in {**job.options, **options}.items() if v is not None}
                self.store.choose(tx, id, told)
            again = self.store.again(tx, id, kind)
            self.engine.enqueue(tx, run_of(id, again.run, kind))
        return again

    def delete(self, id: str, tenant: str) -> None:
        """Audio, text and rows are gone when this returns."""
        job = self.job(id, tenant)
        if not job.ended:
            self.cancel(id, tenant)
        self._erase(id)

    def _erase(self, id: str) -> None:
        self.steps.leave(id)
        mine = prefix(id)
        _until(lambda: not any(w.startswith(mine) for w in self.engine.running()), PATIENCE_S)
        self.store.erase(id)
        self.engine.forget(id)
        self.store.overwrite()

    def transcript(self, id: str, tenant: str) -> Transcript:
        """Raises ApiError: `in_progress` before the end, `not_found` where there is none."""
        job = self.job(id, tenant)
        name = self.store.ref(id, "result")
        if name is None:
            if job.ended:
                raise ApiError("not_found", f"the job is {job.state}: it has no result")
            raise ApiError("in_progress", f"the job is {job.state}", retry_after=5)
        return Transcript.from_dict(json.loads(self.store.blobs.read(name)))

    def audio(self, id: str, tenant: str) -> Path:
        """Raises ApiError."""
        self.job(id, tenant)
        name = self.store.ref(id, "audio")
        if name is None:
            raise ApiError("not_found", "the job's audio is not kept any more")
        return self.store.blobs.path(name)

    def _watch(self) -> None:
        store, watch = self.store, self.metrics.watch
        watch("jobs_open", "Jobs queued or running.", lambda: store.waiting_s()[0])
        watch("jobs_audio_seconds", "Audio of open jobs to be done.", lambda: store.waiting_s()[1])
        watch("jobs_oldest_seconds", "Age of the oldest open job.", self._oldest_s)
        watch("disk_free_bytes", "Left for audio and results.", lambda: store.blobs.free)

    def _oldest_s(self) -> float:
        now = self.store.clock()
        return max((now - job.created_at for job in self.store.open_jobs()), default=0.0)


def new_id() -> str:
    return f"job_{uuid4().hex}"


def fingerprint(audio: str, form: Mapping[str, Any]) -> str:
    """Of a request: its audio's hash and its parameters."""
    return hashlib.sha256(f"{audio}\n{json.dumps(form, sort_keys=True)}".encode()).hexdigest()


def _unknown() -> ApiError:
    return ApiError("job_not_found", "there is no such job")


def _locked(folder: Path) -> BinaryIO:
    """Held as long as it is open: two processes on one SQLite file would take each other's work."""
    file = (folder / "lock").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise UsageError(
            f"data_dir {folder} is in use by another service: set another data_dir, or jobs = false"
        ) from error
    return file


def _until(holds: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
