"""Operations of clients on existing jobs: read, cancel, retry, diarize, delete.

A job of another owner is reported as unknown. Does not know HTTP. May be called from any thread that runs
no event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forescribe.asr.formats.transcript import Transcript

from ..errors import ApiError
from .engines.workflow_engine import JobEngine
from .execution.active_jobs import ActiveJobs
from .execution.completion import Completion
from .execution.job_files import JobFiles
from .retention import Retention
from .storage.records import Job, Kind, State, run_item
from .storage.store import Store


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
        job = self.store.jobs.get(id, owner)
        if job is None:
            raise ApiError("job_not_found", "there is no such job")
        return job

    def page(
        self, owner: str, limit: int, after: str | None, state: str | None
    ) -> tuple[list[Job], bool]:
        """The owner's jobs, the latest first, and whether there are more."""
        return self.store.jobs.page(owner, limit, after, state)

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
        """Assign new speakers to the same words. Raises ApiError: `conflict`, `not_found`."""
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
            if options:
                merged = {k: v for k, v in {**job.options, **options}.items() if v is not None}
                self.store.jobs.set_options(tx, id, merged)
            queued = self.store.jobs.new_run(tx, id, kind)
            self.engine.enqueue(tx, run_item(id, queued.run, kind))
        return queued


def _no_audio() -> ApiError:
    return ApiError("not_found", "the job's audio is not kept any more")
