"""Batches: each line of a file of requests is a job, and nothing else. OpenAI's contract, for audio.

    {"custom_id": "call-1", "method": "POST", "url": "/v1/audio/transcriptions",
     "body": {"model": "whisper-1", "file": "file-...", "response_format": "verbose_json"}}

A batch has a row that says who made it; its lines are jobs with its id, created in one transaction and done
after the jobs of others. Its state is that of its jobs, and its output is written when it is read:

    {"id": "batch_req_...", "custom_id": "call-1", "error": null,
     "response": {"status_code": 200, "request_id": "req_...", "body": {"text": "..."}}}

The recording of a line is a file that the client has uploaded, or one that its job fetches from a URL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO, Literal
from uuid import uuid4

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy.exc import IntegrityError

from .errors import STATUS, ApiError
from .files import ROLE, Files, StoredFile
from .http.bodies import loads
from .jobs.database import Place, Tx, one_page
from .jobs.fetching import check_url
from .jobs.service import Jobs
from .jobs.submissions import IdempotencyKey, JobForm, check, shown
from .jobs.tables import BATCHES, JOBS, Job, NewJob
from .speech import forms
from .speech.answers import body_of
from .speech.diarization import letter, relabelled
from .speech.forms import TranscriptionForm, check_model
from .telemetry import place

ENDPOINT = "/v1/audio/transcriptions"

ID = re.compile(r"batch_[0-9a-f]{32}")
OUTPUT = re.compile(r"file-([0-9a-f]{32})-(output|errors)")
"""The ids of what a batch has written."""

MAX_LINES = 50_000
"""OpenAI's bound of a batch."""

MAX_LINE_BYTES = 16 << 20
"""Four voices of 10 s fit in, as base64."""


class BatchForm(BaseModel):
    """OpenAI's request for a batch. There is no deadline: lines are worked off, however long it takes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_file_id: str
    endpoint: Literal["/v1/audio/transcriptions"]
    completion_window: str = "24h"
    metadata: dict[str, Annotated[str, Field(max_length=512)]] | None = Field(None, max_length=16)


@dataclass(frozen=True)
class Line:
    """A request: its id, its job's form, and where its recording is: a file, or a URL."""

    custom_id: str
    form: JobForm
    file: str | None
    url: str | None


class Batches:
    """The batches of one job database. A batch of another owner is reported as unknown."""

    def __init__(self, jobs: Jobs, files: Files) -> None:
        self.jobs, self.files, self.store = jobs, files, jobs.store
        self.settings = jobs.settings

    def create(self, owner: str, form: BatchForm, key: IdempotencyKey | None = None) -> Batch:
        """Create a batch and the jobs of its lines, or return the earlier one of the same key. Raises
        ApiError `invalid_value` with the number of a line that cannot be used, `file_not_found`."""
        earlier = None if key is None else self._created_by(owner, key)
        if earlier is not None:
            return earlier
        with self.files.path(form.input_file_id, owner).open("rb") as file:
            lines = list(self._lines(file, owner))
        if not lines:
            raise _refused("the file has no requests")
        batch = f"batch_{uuid4().hex}"
        blobs: dict[str, str] = {}
        try:
            with self.store.blobs.shared_lock():
                for text in {line.form.model_dump_json() for line in lines}:
                    blobs[text] = self.store.blobs.put(text.encode())
                with self.store.transaction() as tx:
                    self._insert(tx, batch, owner, form, lines, blobs)
                    if key is not None:
                        self.store.keys.insert(tx, owner, key.text, key.fingerprint, batch)
        except IntegrityError:
            earlier = None if key is None else self._created_by(owner, key)
            if earlier is None:
                raise
            return earlier
        self.jobs.worker.wake()
        return self.get(batch, owner)

    def get(self, id: str, owner: str) -> Batch:
        """Raises ApiError `batch_not_found`."""
        if ID.fullmatch(id):
            query = sa.select(BATCHES).where(BATCHES.c.id == id, BATCHES.c.tenant == owner)
            with self.store.database.engine.connect() as tx:
                row = tx.execute(query).one_or_none()
                if row is not None:
                    return self._batch(tx, row)
        raise ApiError("batch_not_found", "there is no such batch")

    def page(self, owner: str, limit: int, after: Place | None) -> tuple[list[Batch], bool]:
        """Up to `limit` batches, the latest first, behind a place; and whether there are more."""
        query = one_page(sa.select(BATCHES).where(BATCHES.c.tenant == owner), BATCHES, after, limit)
        with self.store.database.engine.connect() as tx:
            batches = [self._batch(tx, row) for row in tx.execute(query).all()]
        return batches[:limit], len(batches) > limit

    def cancel(self, id: str, owner: str) -> Batch:
        """Cancel all lines that have not ended. Raises ApiError `conflict` if the batch has ended."""
        if self.get(id, owner).status != "in_progress":
            raise ApiError("conflict", "the batch has ended: it cannot be cancelled")
        with self.store.transaction() as tx:
            cancelled = sa.update(BATCHES).where(BATCHES.c.id == id)
            tx.execute(cancelled.values(cancelled_at=self.store.now()))
            open_jobs = self.store.jobs.cancel_queued(tx, id)
        for job in open_jobs:
            self.jobs.operations.cancel(job, owner)
        return self.get(id, owner)

    def output(self, id: str, owner: str) -> tuple[StoredFile, Iterator[bytes]] | None:
        """A file that a batch has written, and its content; None for the id of another file. Raises ApiError
        `batch_not_found`, `in_progress`."""
        found = OUTPUT.fullmatch(id)
        if found is None:
            return None
        batch = self.get(f"batch_{found[1]}", owner)
        if batch.status == "in_progress":
            raise ApiError("in_progress", "the batch has not ended", retry_after=5)
        succeeded = found[2] == "output"
        size = sum(map(len, self._written(batch.id, owner, succeeded=succeeded)))
        name, at = f"{batch.id}_{found[2]}.jsonl", batch.ended_at or batch.created_at
        file = StoredFile(id, owner, "batch_output", name, size, at, None)
        return file, self._written(batch.id, owner, succeeded=succeeded)

    def erase_expired(self) -> None:
        """Delete batches whose jobs are deleted."""
        older = BATCHES.c.created_at < self.store.now() - self.settings.result_retention_s
        with self.store.transaction() as tx:
            jobs = sa.exists().where(JOBS.c.batch == BATCHES.c.id)
            tx.execute(sa.delete(BATCHES).where(older, ~jobs))

    # -- the input --------------------------------------------------------------------------------

    def _lines(self, file: BinaryIO, owner: str) -> Iterator[Line]:
        known: dict[str, JobForm] = {}  # most lines have the same fields
        blobs: set[str] = set()
        ids: set[str] = set()
        for number, data in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
            if not data.strip():
                continue
            try:
                line = self._line(data, known)
                if line.custom_id in ids:
                    raise _refused("the custom_id is used again")
                if line.file is not None and line.file not in blobs:
                    self.files.get(line.file, owner)
                    blobs.add(line.file)
            except ApiError as error:
                if error.status >= 500:  # nothing is wrong with the line
                    raise
                raise _refused(f"line {number}: {error.message}") from error
            ids.add(line.custom_id)
            if len(ids) > MAX_LINES:
                raise _refused(f"the file has more than {MAX_LINES} requests")
            yield line

    def _line(self, data: bytes, known: dict[str, JobForm]) -> Line:
        if len(data) > MAX_LINE_BYTES:
            raise _refused(f"more than {MAX_LINE_BYTES} bytes")
        value = loads(data, "line")
        try:
            custom_id, body = value.pop("custom_id"), value.pop("body")
            if value != {"method": "POST", "url": ENDPOINT}:
                raise _refused(f"method and url are not POST {ENDPOINT}, or a field is unknown")
            fields = {k: v for k, v in body.items() if v is not None}
            places = [fields.pop(name, None) for name in ("file", "file_url", "url")]
        except (AttributeError, KeyError, TypeError) as error:
            raise _refused("not an object with custom_id, method, url and body") from error
        given = [place for place in places if place is not None]
        if len(given) != 1 or not isinstance(given[0], str):
            raise _refused("give `file`, the id of a file, or `file_url`")
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= 512:
            raise _refused("custom_id has 1 to 512 characters")
        text = json.dumps(fields, sort_keys=True)
        if text not in known:
            known[text] = self._form(fields)
        if given[0].startswith(("https://", "http://")):
            check_url(given[0], self.settings)
            return Line(custom_id, known[text], None, given[0])
        return Line(custom_id, known[text], given[0], None)

    def _form(self, fields: dict[str, Any]) -> JobForm:
        """The form of a line's job. Raises ApiError for what this server cannot do."""
        serving, settings = self.jobs.serving, self.settings
        try:
            form = TranscriptionForm.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            raise _refused(f"{str(first['loc'][0])[:100]}: {first['msg']}") from error
        check_model(form.model, settings)
        forms.transcription(form, serving, settings)
        return check(JobForm(**form.model_dump()), serving, settings)

    def _insert(
        self,
        tx: Tx,
        batch: str,
        owner: str,
        form: BatchForm,
        lines: list[Line],
        blobs: dict[str, str],
    ) -> None:
        row = {"id": batch, "tenant": owner, "input_file": form.input_file_id, "lines": len(lines)}
        metadata, now = json.dumps(form.metadata), self.store.now()
        tx.execute(sa.insert(BATCHES).values(**row, created_at=now, metadata=metadata))
        jobs, references, audio = [], [], dict[str, str]()
        for file in {line.file for line in lines if line.file is not None}:
            blob = self.store.references.get_in(tx, file, ROLE)
            if blob is None:  # deleted in between
                raise ApiError("file_not_found", "a file of a line has been deleted")
            audio[file] = blob
        for k, line in enumerate(lines):
            id, options = f"job_{uuid4().hex}", {**shown(line.form), "batch": batch}
            jobs.append(
                NewJob(
                    id,
                    owner,
                    line.custom_id,
                    0.0,
                    {},
                    options,
                    trace=place(),
                    batch=batch,
                    line=k,
                    source=line.url,
                )
            )
            references.append((id, "form", blobs[line.form.model_dump_json()]))
            if line.file is not None:
                references.append((id, "audio", audio[line.file]))
        self.store.jobs.insert_all(tx, jobs)
        self.store.references.put_all(tx, references)

    # -- the output -------------------------------------------------------------------------------

    def _written(self, batch: str, owner: str, *, succeeded: bool) -> Iterator[bytes]:
        for job in self.store.jobs.of_batch(batch):
            if (job.state == "succeeded") == succeeded:
                yield json.dumps(self._answer(job, owner), ensure_ascii=False).encode() + b"\n"

    def _answer(self, job: Job, owner: str) -> dict[str, Any]:
        number = job.id.removeprefix("job_")
        line = {
            "id": f"batch_req_{number}",
            "custom_id": job.label,
            "response": None,
            "error": None,
        }
        if job.state == "cancelled":
            text = "This request was not finished before the batch was cancelled."
            return {**line, "error": {"code": "batch_cancelled", "message": text}}
        status: int = 200
        body: Any
        if job.error is not None:
            code, message = job.error
            error = ApiError(code if code in STATUS else "internal_error", message)
            status, body = error.status, error.body()
        else:
            form = self.jobs.operations.files.form(job.id)
            transcript = self.jobs.operations.transcript(job.id, owner)
            if form.diarized:
                transcript = relabelled(transcript, form.known_speaker_names, letter)
            words = form.timestamp_granularities
            body = body_of(form.response_format, transcript, granularities=words)
        return {
            **line,
            "response": {"status_code": status, "request_id": f"req_{number}", "body": body},
        }

    # -- rows -------------------------------------------------------------------------------------

    def _batch(self, tx: Tx, row: sa.Row[Any]) -> Batch:
        columns = JOBS.c.state, sa.func.count(), sa.func.max(JOBS.c.finished_at)
        query = sa.select(*columns).where(JOBS.c.batch == row.id).group_by(JOBS.c.state)
        found = {state: (count, ended_at) for state, count, ended_at in tx.execute(query)}
        counts = {state: count for state, (count, _) in found.items()}
        ended_at = max((at for _, at in found.values() if at), default=row.cancelled_at)
        return Batch(
            row.id,
            row.input_file,
            row.lines,
            row.created_at,
            row.cancelled_at,
            ended_at,
            counts,
            json.loads(row.metadata),
            str(self.settings.model_name),
        )

    def _created_by(self, owner: str, key: IdempotencyKey) -> Batch | None:
        id = self.store.keys.get(owner, key.text, key.fingerprint)
        return None if id is None else self.get(id, owner)


@dataclass(frozen=True)
class Batch:
    """A batch's row, with the number of its jobs by state. Times are Unix seconds."""

    id: str
    input_file: str
    lines: int
    created_at: float
    cancelled_at: float | None
    ended_at: float | None
    jobs: dict[str, int]
    metadata: dict[str, str] | None
    model: str

    @property
    def status(self) -> str:
        if self.jobs.get("queued", 0) + self.jobs.get("running", 0):
            return "in_progress"
        return "completed" if self.cancelled_at is None else "cancelled"

    def view(self) -> dict[str, Any]:
        """OpenAI's Batch object."""
        done, ended = self.jobs.get("succeeded", 0), self.status != "in_progress"
        failed = self.jobs.get("failed", 0) + self.jobs.get("cancelled", 0)
        number = self.id.removeprefix("batch_")
        ended_at = int(self.ended_at) if ended and self.ended_at else None
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": ENDPOINT,
            "model": self.model,
            "errors": None,
            "input_file_id": self.input_file,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": f"file-{number}-output" if ended and done else None,
            "error_file_id": f"file-{number}-errors" if ended and failed else None,
            "created_at": int(self.created_at),
            "in_progress_at": int(self.created_at),
            "completed_at": None if self.cancelled_at else ended_at,
            "cancelled_at": ended_at if self.cancelled_at else None,
            "request_counts": {"total": self.lines, "completed": done, "failed": failed},
            "metadata": self.metadata,
        }


def _refused(reason: str) -> ApiError:
    return ApiError("invalid_value", reason, param="input_file_id")
