"""Submissions: a checked request and its audio become a durable job, at most once for each idempotency key.

A job that is returned is on disk: audio, queue entry and the form of `POST /v1/jobs` with every parameter.
Does not know HTTP.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, NamedTuple
from uuid import uuid4

from pydantic import ConfigDict, Field
from sqlalchemy.exc import IntegrityError

from forescribe.asr.decode.options import Options

from ..access import outbound
from ..errors import ApiError, invalid
from ..settings import Settings
from ..speech import forms
from ..speech.forms import TranscriptionForm
from ..speech.serving import Serving
from ..telemetry import place
from .callbacks import check_secret
from .store import Store
from .tables import Job, bounded

SHOWN = (
    "model",
    "language",
    "prompt",
    "keywords",
    "temperature",
    "task",
    "diarize",
    "num_speakers",
)
"""Fields of the request that the job's JSON repeats."""

MAX_URL, MAX_SECRET, MAX_UPLOAD_ID = 2048, 512, 64
"""Characters of what is stored in a job's row."""

MAX_ITEMS = 20
"""Elements of a list that the job's JSON repeats."""

RETRY_S = 5
"""When a client whose first request is still in progress had better try again."""


class Submissions:
    """Accepts new jobs."""

    def __init__(
        self, settings: Settings, serving: Serving, store: Store, wake: Callable[[], None]
    ) -> None:
        self.settings, self.serving, self.store, self.wake = settings, serving, store, wake
        self.receiving: set[tuple[str, str]] = set()  # keys whose request is still being received

    # -- before the audio is received -------------------------------------------------------------

    def check_capacity(self, owner: str, *, keyed: bool) -> None:
        """Raises ApiError if no further job can be accepted from this owner now."""
        settings = self.settings
        self.check_room()
        if self.store.jobs.backlog()[1] >= settings.max_queued_jobs_s:
            raise ApiError("overloaded", "the queue of jobs is full", retry_after=60)
        count = self.store.jobs.backlog(owner)[0] if keyed else 0
        if count >= settings.max_jobs_per_key:
            text = f"this key has {count} unfinished jobs, its maximum"
            raise ApiError("rate_limited", text, retry_after=60)

    def check_room(self) -> None:
        """Raises ApiError `storage_full` if less than `min_free_bytes` are free on the disk."""
        if self.store.files.free < self.settings.min_free_bytes:
            raise ApiError("storage_full", "the server has no room for the upload")

    @contextmanager
    def reserved(self, owner: str, key: str | None) -> Iterator[None]:
        """Reserve a key while its request is received. Raises ApiError `in_progress` if another request
        with the key is being received."""
        if key is None:
            yield
            return
        if (owner, key) in self.receiving:
            text = "the first request with this Idempotency-Key is still in progress"
            raise ApiError("in_progress", text, retry_after=RETRY_S)
        self.receiving.add((owner, key))
        try:
            yield
        finally:
            self.receiving.discard((owner, key))

    # -- once it is received ----------------------------------------------------------------------

    def created_by(self, owner: str, key: Key | None) -> Job | None:
        """The job that this key has created. Raises ApiError if it was used for another request."""
        job = None if key is None else self.store.jobs.with_key(owner, key.name)
        if job is not None and key is not None and job.fingerprint != key.fingerprint:
            text = "this Idempotency-Key was used for another request before"
            raise ApiError("idempotency_key_reused", text)
        return job

    async def accept(
        self, owner: str, form: JobForm, audio: BinaryIO, label: str | None, key: Key | None
    ) -> Job:
        """Decode the audio for its length, store it, and insert the job; `label` is the client's name for it.
        Returns an earlier job of the same key.

        Raises ApiError for audio that cannot be decoded, is too long or exceeds a limit, and for a key
        that was used for another request; OutputError if the disk is full.
        """
        samples = await self.serving.decoded(audio)
        samples.close()
        job = Job(
            id=f"job_{uuid4().hex}",
            owner=owner,
            label=label,
            total_s=samples.duration_s,
            options=shown(form),
            trace=place(),
        )
        if key is not None:
            job.key, job.fingerprint = key
        if form.webhook_url is not None:
            job.hook_url, job.hook_secret = form.webhook_url, form.webhook_secret
            job.hook_state = "pending"
        return await asyncio.to_thread(self.submit, job, form, audio, key)

    def submit(self, job: Job, form: JobForm, audio: BinaryIO, key: Key | None) -> Job:
        """Insert and queue a job, once everything is on disk; or return the earlier job of the same key.
        Raises as `accept` does."""
        store = self.store
        store.reserve(job.id)
        try:
            for role, data in (("audio", audio), ("form", form.model_dump_json().encode())):
                job.files[role] = store.files.put(job.id, role, data)
            with store.transaction() as tx:
                job = store.accept(tx, job)
        except BaseException as error:
            with suppress(Exception):  # the database may be away: it is swept later
                store.discard(job.id)
            before = self.created_by(job.owner, key) if isinstance(error, IntegrityError) else None
            if before is None:
                raise
            return before
        self.wake()
        return job


class JobForm(TranscriptionForm):
    """`POST /v1/jobs`, without the file.

    Results are available in any format, so `response_format` has no effect on them: words are always
    timed, and `diarized_json` means `diarize`.
    """

    # `parse` refuses unknown fields; a form that an earlier version has stored may hold one that is gone.
    model_config = ConfigDict(extra="ignore")

    diarize: bool = False
    num_speakers: int | None = Field(None, ge=1, le=100)
    webhook_url: str | None = Field(None, max_length=MAX_URL)
    webhook_secret: str | None = Field(None, max_length=MAX_SECRET)
    upload_id: str | None = Field(None, max_length=MAX_UPLOAD_ID)

    @property
    def speakers(self) -> bool:
        """Whether speakers are requested."""
        return self.diarize or self.diarized


class Key(NamedTuple):
    """An Idempotency-Key, and the fingerprint of its request."""

    name: str
    fingerprint: str

    @classmethod
    def of(cls, name: str, form: JobForm, file: BinaryIO | None) -> Key:
        """The fingerprint is of the audio, or the name of its upload, and of all parameters."""
        audio = form.upload_id
        if audio is None and file is not None:
            file.seek(0)
            audio = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        fields = json.dumps(form.model_dump(mode="json"), sort_keys=True)
        return cls(name, hashlib.sha256(f"{audio}\n{fields}".encode()).hexdigest())


def check(form: JobForm, serving: Serving, settings: Settings) -> JobForm:
    """The form, with the defaults that settings may change later written out. Raises ApiError for what
    cannot be served."""
    if form.stream:
        raise invalid("stream", "leave it out, and read GET /v1/jobs/JOB/events of the job")
    if form.include:
        raise invalid("include", "a job keeps no logprobs")
    if form.num_speakers is not None and not form.speakers:
        raise invalid("num_speakers", "needs diarize")
    if form.webhook_url is not None:
        _check_callback(form.webhook_url, form, settings)
    elif form.webhook_secret is not None:
        raise invalid("webhook_secret", "needs webhook_url")
    options = transcription(form, serving, settings)
    resolved = {
        "model": form.model or settings.model_name,
        "language": options.language or "auto",
        "languages": None,
        "diarize": form.speakers,
        "webhook_secret": form.webhook_secret or settings.webhook_secret,
    }
    return form.model_copy(update=resolved)


def transcription(form: JobForm, serving: Serving, settings: Settings) -> Options:
    """The transcriber's options for a job. Raises ApiError."""
    as_transcription = form.model_copy(
        update={
            "response_format": "diarized_json",  # implies word times, and allows known speakers
            "timestamp_granularities": None,
        }
    )
    return forms.transcription(as_transcription, serving, settings)


def shown(form: JobForm) -> dict[str, Any]:
    """The part of the form that the job's JSON repeats, without empty fields; what is long is cut off."""
    found: dict[str, Any] = {}
    for name in SHOWN:
        value = getattr(form, name)
        if isinstance(value, str):
            value = bounded(value)
        elif isinstance(value, tuple):
            value = [bounded(item) for item in value[:MAX_ITEMS]]
        if value not in (None, "", []):
            found[name] = value
    return found


def _check_callback(url: str, form: JobForm, settings: Settings) -> None:
    try:
        outbound.check_url(url, settings.webhook_networks)
    except outbound.Refused as error:
        raise invalid("webhook_url", str(error)) from error
    secret = form.webhook_secret or settings.webhook_secret
    if secret is None:
        raise invalid("webhook_secret", "a callback is signed: give whsec_ followed by base64")
    try:
        check_secret(secret)
    except ValueError as error:
        raise invalid("webhook_secret", str(error)) from error
