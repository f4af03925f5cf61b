"""Jobs in a process: start, hand-over to the next process, operations of clients, and retention.

A job of another owner is reported as unknown. Retention erases jobs, audio, keys and uploads that are older
than the settings keep them; deletion on request uses the same `erase`. Does not know HTTP: routes use
`submissions`, `operations`, `corrected` and `uploads`, from any thread that runs no event loop.
"""

from __future__ import annotations

import fcntl
import json
import re
import threading
import time
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from forescribe.asr.errors import CapacityError, StorageError, UsageError, how_to_install
from forescribe.asr.formats.transcript import Transcript

from ..errors import ApiError, invalid
from ..http.bodies import split_name
from ..settings import Settings
from ..speech.serving import Serving
from ..telemetry import WHOLE_DATABASE
from ..uploads import Uploads
from .callbacks import JobMetrics, Webhooks
from .corrections import CorrectedJobs, latest_version
from .store import Store
from .submissions import Submissions
from .tables import Job, Kind, State
from .walk import RELEASE_S, Walk
from .worker import Worker, repeat, wait_until

if TYPE_CHECKING:
    from .files import ObjectFiles


MAX_LABEL_LENGTH = 255

PAGE = 100
"""Jobs that are read at a time."""

SWEEP_S = 3600.0
"""Between two listings of all files by a process."""

UPLOAD_KEPT_S = 24 * 3600.0
"""An unfinished upload: a client that was away for a night continues it."""

KEYS_KEPT_S = 7 * 24 * 3600.0
"""An Idempotency-Key: longer than any client tries again."""

RETENTION_TICK_S = 60.0
"""Between two looks at what has expired."""

PATIENCE_S = 15.0
"""Of requests to object storage: clients wait for some of them, and jobs wait on after them anyway."""

PLACES = 3
"""That a search tells of a recording."""

HEAD = '{"text": '
"""A result begins with its whole text, which is read in a fiftieth of the time that all of it takes."""

AUDIO = re.compile("audio")

UNKNOWN = "there is no such job"

ID = re.compile(r"job_[0-9a-f]{32}")


class Jobs:
    """The jobs of one database. `lock` is held on its folder; fault tests replace `walk`."""

    def __init__(
        self,
        settings: Settings,
        serving: Serving,
        store: Store,
        *,
        webhooks: Webhooks | None = None,
        lock: BinaryIO | None = None,
        walk: type[Walk] = Walk,
    ) -> None:
        self.settings, self.serving, self.store = settings, serving, store
        self._lock = lock
        self.uploads = Uploads(settings.data_folder / "uploads", settings, store.now)
        metrics, self._stopping = JobMetrics(serving.metrics), threading.Event()
        self.worker = Worker(
            store,
            serving,
            walk(settings, serving, store, metrics),
            webhooks or Webhooks(allowed=settings.webhook_networks),
            metrics,
            self._stopping,
            concurrency=0 if settings.front_end else settings.job_concurrency,
        )
        self.submissions = Submissions(settings, serving, store, self.worker.wake)
        self.operations = Operations(store, self.worker, metrics)
        self.corrected = CorrectedJobs(store, self.operations.get, self.operations.transcript)
        self._swept_s = -SWEEP_S
        pause = partial(self._stopping.wait, RETENTION_TICK_S)
        retention = "retention", self._retain, pause, self._stopping
        self._retention = threading.Thread(target=repeat, args=retention, daemon=True)
        self._watch()

    @classmethod
    def open(cls, settings: Settings, serving: Serving, **given: Any) -> Jobs:
        """The jobs in the database and the folder of the settings, which other processes of this machine may
        use too. Raises UsageError, CapacityError."""
        folder = settings.made_data_folder()
        lock = (folder / "lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True  # since the last process on this folder has ended
        except OSError:
            fcntl.flock(lock, fcntl.LOCK_SH)  # the first one has made the database, and recovered
            alone = False
        jobs = cls(settings, serving, open_store(settings, folder), lock=lock, **given)
        if alone:
            jobs.uploads.recover()
            if settings.database_url is None:
                jobs.store.jobs.expire_leases()
                jobs.store.sweep(older_s=0.0)
        fcntl.flock(lock, fcntl.LOCK_SH)
        return jobs

    def start(self) -> None:
        """Resume unfinished work, and begin to work on new jobs."""
        self.worker.start()
        self._retention.start()

    @property
    def leaving(self) -> bool:
        """Whether the next process continues the work in progress."""
        return self._stopping.is_set()

    def hand_over(self) -> None:
        """Interrupt the work in progress, which the next process continues. Requests are answered until
        `stop`. Does nothing the second time."""
        if not self._stopping.is_set():
            self.worker.stop()
            if self._retention.is_alive():  # it may wait for storage: the next process does it
                self._retention.join(RELEASE_S)

    def stop(self) -> None:
        """Hand over, and release the database."""
        self.hand_over()
        self.store.close()
        if self._lock is not None:
            self._lock.close()

    def page(
        self, owner: str, limit: int, after: str | None, state: State | None
    ) -> tuple[list[Job], bool]:
        """Jobs behind the job `after`, and whether more follow. Raises ApiError `invalid_value`."""
        try:
            last = None if after is None else self.operations.get(after, owner)
        except ApiError as error:
            text = "not the id of a job; give the id of the last job of the previous page"
            raise invalid("after", text) from error
        return self.store.jobs.page(owner, limit, last, state)

    def search(self, owner: str, words: str, after: str | None) -> tuple[list[Any], str | None]:
        """Where words are said: of the `PAGE` results behind the job `after`, the latest first, those with
        the words in text or name; and behind which job to go on. Case and accents do not matter."""
        wanted, found = _folded(words).strip(), []
        if not words.strip():
            raise invalid("q", "give the words to search for")
        if not wanted:  # an accent, on the way to its letter
            return [], None
        page, more = self.page(owner, PAGE, after, "succeeded")
        for job in page:
            places = self._places(job, wanted)
            if places or wanted in _folded(job.label or ""):
                found.append({"job": job.view(), "count": len(places), "places": places[:PLACES]})
        return found, page[-1].id if more else None

    def _places(self, job: Job, wanted: str) -> list[dict[str, Any]]:
        """The segments in which the words begin, each with its next one, and when they do."""
        try:
            if latest_version(job):
                transcript = self.corrected.transcript(job.id, job.owner).to_dict()
            else:
                text = self.store.files.read(job.id, job.files["result"]).decode()
                if text.startswith(HEAD):
                    spoken, _ = json.JSONDecoder().raw_decode(text, len(HEAD))
                    if wanted not in _folded(spoken):
                        return []
                transcript = json.loads(text)
        except (ApiError, FileNotFoundError):  # erased, or replaced by another run, meanwhile
            return []
        segments: Any = transcript["segments"]
        words, begins, whole, found = list[tuple[int, float]](), list[int](), "", dict[int, float]()
        for n, segment in enumerate(segments):
            for word in segment.get("words") or [{**segment, "word": segment["text"]}]:
                words.append((n, word["start"]))
                begins.append(len(whole))
                folded = _folded(word["word"])
                whole += folded.lstrip() if whole.endswith(" ") else folded
        for hit in re.finditer(re.escape(wanted), whole):
            found.setdefault(*words[bisect_right(begins, hit.start()) - 1])
        texts = [segment["text"] for segment in segments]
        return [{"start": at, "text": "".join(texts[n : n + 2]).strip()} for n, at in found.items()]

    # -- retention, in a thread of its own: deletions in object storage take long, and leases must not wait

    def _retain(self) -> None:
        self.store.files.trim()
        self.uploads.expire(UPLOAD_KEPT_S)
        self.erase_expired()
        if time.monotonic() - self._swept_s >= SWEEP_S:
            self._swept_s = time.monotonic()
            self.store.sweep_files()

    def erase_expired(self) -> None:
        """Erase everything that is older than the settings keep it, and what dead processes have left. Each
        process of a database does it for all."""
        now, settings, store = self.store.now(), self.settings, self.store
        store.sweep()
        for job in store.jobs.with_audio_succeeded_before(now - settings.audio_retention_s):
            store.drop(job.id, AUDIO)
        for job in store.jobs.ended_before(now - settings.result_retention_s):
            self.operations.erase(job.id)
        store.jobs.forget_keys(now - KEYS_KEPT_S)

    def _watch(self) -> None:
        rows, files, metrics = self.store.jobs, self.store.files, self.serving.metrics
        watch, whole = metrics.watch, WHOLE_DATABASE
        watch("jobs_open", f"Jobs queued or running, {whole}.", lambda: rows.backlog()[0])
        text = f"Remaining audio of unfinished jobs, {whole}."
        watch("jobs_audio_seconds", text, lambda: rows.backlog()[1])
        watch("jobs_oldest_seconds", f"Age of the oldest unfinished job, {whole}.", rows.oldest_s)
        watch("disk_free_bytes", "Free space for audio and results.", lambda: files.free)
        text = "Requests to object storage, repetitions included, by kind."
        metrics.count("store_requests", text, lambda: files.requests, "kind")


class Operations:
    """What the routes do with jobs that were submitted before."""

    def __init__(self, store: Store, worker: Worker, metrics: JobMetrics) -> None:
        self.store, self.worker, self.metrics = store, worker, metrics

    def get(self, id: str, owner: str) -> Job:
        """Raises ApiError `job_not_found`."""
        # The form of an id is checked first: databases refuse some characters.
        job = self.store.jobs.get(id, owner) if ID.fullmatch(id) else None
        if job is None:
            raise ApiError("job_not_found", UNKNOWN)
        return job

    def transcript(self, id: str, owner: str) -> Transcript:
        """Raises ApiError: `in_progress` before the end, `not_found` if there is no result."""
        job = self.get(id, owner)
        if "result" in job.files:
            with suppress(FileNotFoundError):  # erased, or replaced by another run, meanwhile
                return Transcript.from_dict(self.store.read(job, "result"))
            return Transcript.from_dict(self.store.read(self.get(id, owner), "result"))
        if job.ended:
            raise ApiError("not_found", f"the job is {job.state}: it has no result")
        raise ApiError("in_progress", f"the job is {job.state}", retry_after=5)

    def rename(self, id: str, owner: str, name: str) -> Job:
        """Another name for the recording. Its ending stays, which says what is in the file. Raises ApiError
        for one that is too long."""
        _, ending = split_name(self.get(id, owner).label or "")
        if not name.casefold().endswith(ending.casefold()):
            name += ending
        if len(name) > MAX_LABEL_LENGTH:
            text = f"{len(name)} characters with its ending; give {MAX_LABEL_LENGTH} at most"
            raise invalid("label", text)
        with self.store.transaction() as tx:
            self.store.jobs.update(tx, id, label=name)
        return self.get(id, owner)

    def results(self, owner: str) -> Iterator[Job]:
        """The jobs that have succeeded, the latest first."""
        last, more = None, True
        while more:
            page, more = self.store.jobs.page(owner, PAGE, last, "succeeded")
            yield from page
            last = page[-1] if page else None

    def cancel(self, id: str, owner: str) -> Job:
        """End a job, whatever its work still does; a job that has ended stays as it is."""
        self.get(id, owner)
        with self.store.transaction() as tx:
            job = self.store.jobs.locked(tx, id)
            if job is not None and not job.ended:
                # The transcript that a diarization was to change still exists.
                state: State = "succeeded" if job.kind == "diarize" else "cancelled"
                self.metrics.ended(self.store.jobs.end(tx, id, state))
        self.worker.abandon(id)
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
        if not self.get(id, owner).ended:
            self.cancel(id, owner)
        self.erase(id)

    def erase(self, id: str) -> None:
        """Erase a job that has ended, completely: rows, files and SQLite's log."""
        self.worker.abandon(id)
        wait_until(lambda: id not in self.worker.running(), RELEASE_S)
        self.store.erase(id)
        self.store.database.truncate_log()

    def _new_run(
        self, id: str, owner: str, states: tuple[State, ...], kind: Kind, options: Mapping[str, Any]
    ) -> Job:
        self.get(id, owner)
        with self.store.transaction() as tx:
            job = self.store.jobs.locked(tx, id)
            if job is None:
                raise ApiError("job_not_found", UNKNOWN)
            if job.state not in states:
                raise ApiError("conflict", f"the job is {job.state}, not {' or '.join(states)}")
            if "audio" not in job.files:
                raise ApiError("not_found", "the job's audio is not kept any more")
            if latest_version(job):
                text = "the text has corrections, which belong to its speakers: delete them first"
                raise ApiError("conflict", f"{text} (DELETE /v1/jobs/{id}/corrections)")
            merged = {k: v for k, v in {**job.options, **options}.items() if v is not None}
            queued = self.store.jobs.new_run(tx, job, kind, merged)
        self.worker.wake()
        return queued


def _folded(text: str) -> str:
    """As the page's search has it: without case, marks and repeated spaces."""
    if not text.isascii():
        parts = unicodedata.normalize("NFKD", text)
        text = "".join(c for c in parts if not unicodedata.category(c).startswith("M"))
    return re.sub(r"\s+", " ", text.lower())


def open_store(settings: Settings, folder: Path) -> Store:
    """The job store of the settings, in the folder. Raises UsageError, CapacityError."""
    files = None
    if settings.blobs_url is not None:
        files = open_objects(settings.blobs_url, folder, settings.blob_cache_bytes)
    store = Store.open(folder, settings.database_url, files)
    if settings.database_url is not None and not store.database.belongs_to(store.files.place):
        raise UsageError(
            "the jobs of this database have their audio and results in another place: set the same blobs_url "
            "for all its processes, or the same data_dir on a disk that they share"
        )
    return store


def open_objects(url: str, folder: Path, cache_bytes: int) -> ObjectFiles:
    """The files at a URL. Raises UsageError if it cannot be used, CapacityError if it does not answer."""
    try:
        from forescribe.asr.storage import stores
        from forescribe.asr.storage.locations import Location
    except ModuleNotFoundError as error:
        raise UsageError(
            f"blobs_url needs {error.name}: {how_to_install('serve', 's3')}"
        ) from error
    from .files import ObjectFiles

    try:
        store = stores.Stores(PATIENCE_S).at(Location.parse(url))
        files = ObjectFiles(store, folder, cache_bytes)
        files.probe()
    except StorageError as error:
        kind = CapacityError if error.code == "storage_unavailable" else UsageError
        raise kind(f"blobs_url: {error.message}") from error
    return files
