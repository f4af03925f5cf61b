"""Batches and the files that they are made of: each line of a file of requests is a job, and nothing else.
OpenAI's contract, for audio.

    {"custom_id": "call-1", "method": "POST", "url": "/v1/audio/transcriptions",
     "body": {"model": "whisper-1", "file": "file-...", "response_format": "verbose_json"}}

A batch has a row that says who made it; its lines are jobs with its id, created in one transaction and done
after the jobs of others. Its state is that of its jobs, and its output is written when it is read:

    {"id": "batch_req_...", "custom_id": "call-1", "error": null,
     "response": {"status_code": 200, "request_id": "req_...", "body": {"text": "..."}}}

The recording of a line is a file that the client has uploaded, or one that its job fetches from a URL.

A file has a row, and its content is a blob. Equal contents are stored once, and a file that is deleted while
a job uses it stays until the job lets go. A file or a batch of another owner, and one that has expired, is
reported as unknown. Does not know HTTP. May be called from any thread that runs no event loop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal
from uuid import uuid4

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy.exc import IntegrityError

from forescribe.diarize.turns import letter

from .errors import STATUS, ApiError
from .http.bodies import loads
from .jobs.blobs import BlobDraft
from .jobs.database import Place, Tx, one_page
from .jobs.fetching import check_url
from .jobs.service import Jobs
from .jobs.store import Store
from .jobs.submissions import IdempotencyKey, JobForm, check, shown
from .jobs.tables import BATCHES, FILES, JOBS, Job, NewJob
from .speech import forms
from .speech.answers import body_of
from .speech.diarization import relabelled
from .speech.forms import TranscriptionForm, check_model
from .telemetry import place
from .wording import told

ENDPOINT = "/v1/audio/transcriptions"

Purpose = Literal["batch", "user_data", "batch_output"]

FILE_ID = re.compile(r"file-[0-9a-f]{32}")
ID = re.compile(r"batch_[0-9a-f]{32}")
OUTPUT = re.compile(r"file-([0-9a-f]{32})-(output|errors)")
"""The ids of what a batch has written."""

ROLE = "content"
"""The role of the reference from a file to its blob."""

ROW = [
    BATCHES.c[n] for n in ("id", "input_file", "lines", "created_at", "cancelled_at", "metadata")
]
"""The columns of a `Batch`."""

MAX_LINES = 50_000
"""OpenAI's bound of a batch."""

MAX_LINE_BYTES = 16 << 20
"""Four voices of 10 s fit in, as base64."""


class ExpiresAfter(BaseModel):
    """When the file is deleted, counted from its creation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=30 * 24 * 3600)


class FileForm(BaseModel):
    """OpenAI's request for a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    purpose: Literal["batch", "user_data"]
    expires_after: ExpiresAfter | None = None


class BatchForm(BaseModel):
    """OpenAI's request for a batch. There is no deadline: lines are worked off, however long it takes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_file_id: str
    endpoint: Literal["/v1/audio/transcriptions"]
    completion_window: str = "24h"
    metadata: dict[str, Annotated[str, Field(max_length=512)]] | None = Field(None, max_length=16)


class Files:
    """The files of one job database."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def add(
        self, owner: str, purpose: Purpose, filename: str, content: BlobDraft, kept_s: float
    ) -> StoredFile:
        """Keep a file for so many seconds. Raises OutputError."""
        now = self.store.now()
        id = f"file-{uuid4().hex}"
        file = StoredFile(id, owner, purpose, filename, content.size, now, now + kept_s)
        content.flush()
        with self.store.blobs.shared_lock():
            blob = content.commit()
            with self.store.transaction() as tx:
                tx.execute(sa.insert(FILES).values(**asdict(file)))
                self.store.references.put(tx, id, ROLE, blob)
        return file

    def get(self, id: str, owner: str) -> StoredFile:
        """Raises ApiError `file_not_found`."""
        query = sa.select(FILES).where(FILES.c.id == id, FILES.c.owner == owner, self._alive())
        with self.store.database.engine.connect() as tx:
            row = tx.execute(query).one_or_none() if FILE_ID.fullmatch(id) else None
        if row is None:
            raise _no_file()
        return StoredFile(*row)

    def page(self, owner: str, limit: int, after: Place | None) -> tuple[list[StoredFile], bool]:
        """Up to `limit` files, the latest first, behind a place; and whether there are more."""
        query = sa.select(FILES).where(FILES.c.owner == owner, self._alive())
        with self.store.database.engine.connect() as tx:
            rows = tx.execute(one_page(query, FILES, after, limit)).all()
        return [StoredFile(*row) for row in rows[:limit]], len(rows) > limit

    def path(self, id: str, owner: str) -> Path:
        """The content on disk, to be opened at once. Raises ApiError `file_not_found`."""
        self.get(id, owner)
        name = self.store.references.get(id, ROLE)
        try:
            if name is not None:
                return self.store.blobs.local(name)
        except FileNotFoundError:
            pass  # deleted in between
        raise _no_file()

    def delete(self, id: str, owner: str) -> None:
        """Raises ApiError `file_not_found`."""
        self.get(id, owner)
        self._erase(id)

    def erase_expired(self) -> None:
        query = sa.select(FILES.c.id).where(FILES.c.expires_at <= self.store.now())
        with self.store.database.engine.connect() as tx:
            expired = list(tx.execute(query).scalars())
        for id in expired:
            self._erase(id)

    def _alive(self) -> sa.ColumnElement[bool]:
        return FILES.c.expires_at.is_(None) | (FILES.c.expires_at > self.store.now())

    def _erase(self, id: str) -> None:
        self.store.references.drop_all(id, sa.delete(FILES).where(FILES.c.id == id))


@dataclass(frozen=True)
class StoredFile:
    """A file's row, column by column. Times are Unix seconds."""

    id: str
    owner: str  # name of the API key
    purpose: Purpose
    filename: str  # the client's name for it: a label, never a path
    size: int  # bytes
    created_at: float
    expires_at: float | None

    def view(self) -> dict[str, Any]:
        """OpenAI's File object. `status` is deprecated there, and SDKs still require it."""
        expires_at = None if self.expires_at is None else int(self.expires_at)
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size,
            "created_at": int(self.created_at),
            "expires_at": expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
        }


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
        batch, blobs = f"batch_{uuid4().hex}", dict[str, str]()
        row = {"id": batch, "tenant": owner, "input_file": form.input_file_id, "lines": len(lines)}
        row |= {"created_at": self.store.now(), "metadata": json.dumps(form.metadata)}
        try:
            with self.store.blobs.shared_lock():
                for text in {line.form.model_dump_json() for line in lines}:
                    blobs[text] = self.store.blobs.put(text.encode())
                with self.store.transaction() as tx:
                    tx.execute(sa.insert(BATCHES).values(**row))
                    self._insert_jobs(tx, batch, owner, lines, blobs)
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
            query = sa.select(*ROW).where(BATCHES.c.id == id, BATCHES.c.tenant == owner)
            with self.store.database.engine.connect() as tx:
                row = tx.execute(query).one_or_none()
                if row is not None:
                    return self._batch(tx, row)
        raise ApiError("batch_not_found", "there is no such batch")

    def page(self, owner: str, limit: int, after: Place | None) -> tuple[list[Batch], bool]:
        """Up to `limit` batches, the latest first, behind a place; and whether there are more."""
        query = one_page(sa.select(*ROW).where(BATCHES.c.tenant == owner), BATCHES, after, limit)
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
            field, message = told(error.errors(), TranscriptionForm.model_fields)
            raise _refused(f"{field[:100]}: {message}") from error
        check_model(form.model, settings)
        forms.transcription(form, serving, settings)
        return check(JobForm(**form.model_dump()), serving, settings)

    def _insert_jobs(
        self, tx: Tx, batch: str, owner: str, lines: list[Line], blobs: dict[str, str]
    ) -> None:
        jobs, references, audio = [], [], dict[str, str]()
        for file in {line.file for line in lines if line.file is not None}:
            blob = self.store.references.get_in(tx, file, ROLE)
            if blob is None:  # deleted in between
                raise ApiError("file_not_found", "a file of a line has been deleted")
            audio[file] = blob
        for k, line in enumerate(lines):
            id, options = f"job_{uuid4().hex}", {**shown(line.form), "batch": batch}
            new = NewJob(id, owner, line.custom_id, 0.0, {}, options, trace=place(), batch=batch)
            jobs.append(replace(new, line=k, source=line.url))
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
        response: dict[str, Any] = {"status_code": 200, "request_id": f"req_{number}"}
        if job.error is not None:
            code, message = job.error
            error = ApiError(code if code in STATUS else "internal_error", message)
            response |= {"status_code": error.status, "body": error.body()}
        else:
            form = self.jobs.operations.files.form(job.id)
            transcript = self.jobs.operations.transcript(job.id, owner)
            if form.diarized:
                transcript = relabelled(transcript, form.known_speaker_names, letter)
            words = form.timestamp_granularities
            response["body"] = body_of(form.response_format, transcript, granularities=words)
        return {**line, "response": response}

    # -- rows -------------------------------------------------------------------------------------

    def _batch(self, tx: Tx, row: sa.Row[Any]) -> Batch:
        columns = JOBS.c.state, sa.func.count(), sa.func.max(JOBS.c.finished_at)
        query = sa.select(*columns).where(JOBS.c.batch == row.id).group_by(JOBS.c.state)
        found = {state: (count, ended_at) for state, count, ended_at in tx.execute(query)}
        counts = {state: count for state, (count, _) in found.items()}
        ended_at = max((at for _, at in found.values() if at), default=row.cancelled_at)
        return Batch(**row._mapping, ended_at=ended_at, jobs=counts, model=self.settings.model_name)

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
    metadata: str  # JSON
    ended_at: float | None
    jobs: dict[str, int]
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
            "metadata": json.loads(self.metadata),
        }


def _refused(reason: str) -> ApiError:
    return ApiError("invalid_value", reason, param="input_file_id")


def _no_file() -> ApiError:
    return ApiError("file_not_found", "there is no such file")
