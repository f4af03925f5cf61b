"""`/v1/jobs`: long audio, batches, and clients that cannot hold a connection. See docs/jobs.md.

A 202 is a promise: the audio and every parameter are on disk. Every job is its key's own; to all
others there is none.
"""

from __future__ import annotations

import asyncio
import mimetypes
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response

from forescribe.asr.formats import files
from forescribe.asr.formats.rttm import rttm

from ..dependencies import ANYBODY, Caller, Configured, Served
from ..errors import ApiError
from ..http.validation import loads, whole
from ..jobs.blobs import Draft
from ..jobs.job_dependencies import Jobbing
from ..jobs.job_events import follow
from ..jobs.records import ENDED, Hook, Job, New, State
from ..jobs.request import JobForm, check, shown
from ..jobs.service import Jobs, Key, fingerprint, new_id
from ..speech.answers import answer
from ..speech.events import EventStream
from ..speech.forms import parse
from ..speech.serving import Serving
from ..uploads.multipart import Received, media_type, receive_form
from .models import known

POLL_S = 5
"""How often a client that polls had better look."""

LONGEST_KEY = 255
LONGEST_LABEL = 255
MOST_SPEAKERS = 100
SMALL = 64 << 10

ResultFormat = Literal[
    "json", "text", "srt", "vtt", "tsv", "verbose_json", "diarized_json", "rttm", "transcript"
]

JOB = re.compile(r"job_[0-9a-f]{32}")
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


def known_id(id: str) -> str:
    """The id of a path, if it can be one: databases refuse some characters. Raises `job_not_found`."""
    if not JOB.fullmatch(id):
        raise ApiError("job_not_found", "there is no such job")
    return id


Known = Annotated[str, Depends(known_id)]

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


def _described() -> dict[str, Any]:
    """The form for the OpenAPI description, which FastAPI cannot see."""
    schema = JobForm.model_json_schema()
    schema["properties"]["file"] = {"type": "string", "format": "binary"}
    body = {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    return {"requestBody": body}


@router.post("", status_code=202, openapi_extra=_described())
async def submit(
    request: Request, settings: Configured, serving: Served, jobs: Jobbing, caller: Caller
) -> Response:
    """The job, accepted; or the one that the same Idempotency-Key has made before."""
    serving.check()
    key = _key(request)
    await asyncio.to_thread(jobs.check, caller, keyed=caller != ANYBODY)
    place = serving.admission.arrive(caller, keyed=caller != ANYBODY)
    try:
        async with _claimed(jobs, caller, key), receive_form(request, settings) as received:
            place.enter()
            form = check(parse(JobForm, received.fields), serving, settings)
            known(form.model, settings)
            if (form.upload_id is None) == (received.file is None):
                text = "give a file, or the upload_id of a finished upload"
                raise ApiError("missing_file", text, param="file")
            told = form.model_dump(mode="json")
            job = await _earlier(jobs, caller, form, told, key)
            if job is None:
                async with _audio(jobs, caller, form, received) as (file, label):
                    job = await _accepted(jobs, serving, caller, form, told, file, label, key)
                if form.upload_id is not None:  # it is a blob now
                    await asyncio.to_thread(jobs.uploads.delete, form.upload_id, caller)
    finally:
        place.leave()
    headers = {"Location": f"/v1/jobs/{job.id}", "Retry-After": str(POLL_S)}
    return JSONResponse(job.view(), 202, headers)


@router.get("")
async def listed(
    jobs: Jobbing,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: str | None = None,
    state: State | None = None,
) -> dict[str, Any]:
    """The latest first; `after` is the id of the last one seen."""
    if after is not None:
        try:
            await asyncio.to_thread(jobs.job, known_id(after), caller)
        except ApiError as error:
            text = "after: not the id of a job that is there; give that of the last one seen"
            raise ApiError("invalid_value", text, param="after") from error
    found, more = await asyncio.to_thread(jobs.store.jobs, caller, limit, after, state)
    return {"object": "list", "data": [job.view() for job in found], "has_more": more}


@router.get("/{id}")
async def one(id: Known, jobs: Jobbing, caller: Caller) -> Response:
    return _view(await asyncio.to_thread(jobs.job, id, caller))


@router.get("/{id}/events")
async def events(id: Known, request: Request, jobs: Jobbing, caller: Caller) -> Response:
    """Server-sent events; `Last-Event-ID` goes on behind that one."""
    await asyncio.to_thread(jobs.job, id, caller)
    last = request.headers.get("last-event-id", "0")
    if not (last.isascii() and last.isdecimal() and len(last) < 12):
        raise ApiError("invalid_value", "Last-Event-ID: not an event of this job")
    return EventStream(follow(jobs, id, int(last)), lambda: None)


@router.get("/{id}/result")
async def result(
    id: Known, jobs: Jobbing, caller: Caller, response_format: ResultFormat = "json"
) -> Response:
    """In any format, from what was decoded; 409 before there is one."""
    transcript = await asyncio.to_thread(jobs.transcript, id, caller)
    if response_format in ("diarized_json", "rttm") and not transcript.diarized:
        text = (
            f"{response_format}: the job has no speakers; POST /v1/jobs/{{id}}/diarize finds them"
        )
        raise ApiError("conflict", text, param="response_format")
    if response_format == "transcript":
        return JSONResponse(transcript.to_dict())
    if response_format == "tsv":
        return PlainTextResponse(files.tsv(transcript))
    if response_format == "rttm":
        return PlainTextResponse(rttm(transcript))
    return answer(response_format, transcript, granularities=("word", "segment"))


@router.get("/{id}/audio")
async def audio(id: Known, request: Request, jobs: Jobbing, caller: Caller) -> Response:
    """What was uploaded, byte for byte; `Range` is obeyed."""
    job = await asyncio.to_thread(jobs.job, id, caller)
    path = await asyncio.to_thread(jobs.audio, id, caller)
    kind = mimetypes.guess_type(job.label or "")[0] or ""
    safe = kind if kind.startswith(("audio/", "video/")) else "application/octet-stream"
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "private, no-store"}
    if not _ranged(request.headers.get("range"), path.stat().st_size):
        request.scope["headers"] = [(k, v) for k, v in request.scope["headers"] if k != b"range"]
    return FileResponse(  # played where it can be; saved, it has the name that it came with
        path,
        media_type=safe,
        headers=headers,
        filename=job.label or "recording",
        content_disposition_type="inline",
    )


def _ranged(header: str | None, size: int) -> bool:
    """Whether a Range header is one that is served; others are ignored, as HTTP allows. Raises ApiError
    `range_not_satisfiable`."""
    match = RANGE.fullmatch((header or "").replace(" ", "").lower())
    if match is None or match[0] == "bytes=-":
        return False
    first, last = match[1], match[2]
    if int(first) >= size if first else int(last) == 0:
        text = f"Range: the recording has {size} bytes"
        raise ApiError(
            "range_not_satisfiable", text, param="Range", more={"Content-Range": f"bytes */{size}"}
        )
    return not (first and last) or int(first) <= int(last)


@router.post("/{id}/cancel")
async def cancel(id: Known, jobs: Jobbing, caller: Caller) -> Response:
    """A job that has ended stays as it is."""
    return _view(await asyncio.to_thread(jobs.cancel, id, caller))


@router.post("/{id}/retry", status_code=202)
async def retry(id: Known, jobs: Jobbing, caller: Caller) -> Response:
    """A failed or cancelled job goes on behind the windows that it has."""
    return _view(await asyncio.to_thread(jobs.retry, id, caller), 202)


@router.post("/{id}/diarize", status_code=202)
async def diarize(id: Known, request: Request, jobs: Jobbing, caller: Caller) -> Response:
    """Speakers, found anew, on the words that are there; nothing is decoded again. `num_speakers` may
    be in the query, a form or JSON."""
    count = await _num_speakers(request)
    return _view(await asyncio.to_thread(jobs.diarize, id, caller, count), 202)


async def _num_speakers(request: Request) -> int | None:
    value: Any = request.query_params.get("num_speakers")
    kind = media_type(request)
    if kind == "application/json":
        value = _fields(await _small(request)).get("num_speakers", value)
    elif kind in ("multipart/form-data", "application/x-www-form-urlencoded"):
        async with request.form(max_files=0, max_fields=4, max_part_size=SMALL) as form:
            value = form.get("num_speakers", value)
    if value in (None, ""):
        return None
    number = whole(value if isinstance(value, str) else str(value)[:20], MOST_SPEAKERS)
    if not number:
        message = f"num_speakers: a number from 1 to {MOST_SPEAKERS}"
        raise ApiError("invalid_value", message, param="num_speakers")
    return number


async def _small(request: Request) -> bytes:
    """A body that has a number in it, and no more."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > SMALL:
            raise ApiError("file_too_large", f"the body has more than {SMALL} bytes")
    return bytes(body)


def _fields(body: bytes) -> dict[str, Any]:
    found = loads(body or b"{}", "body")
    if not isinstance(found, dict):
        raise ApiError("invalid_value", "the body is no JSON object")
    return found


@router.delete("/{id}", status_code=204)
async def delete(id: Known, jobs: Jobbing, caller: Caller) -> Response:
    """Cancels it if need be, and erases audio, text and rows."""
    await asyncio.to_thread(jobs.delete, id, caller)
    return Response(status_code=204)


# -- the way in -----------------------------------------------------------------------------------


async def _earlier(
    jobs: Jobs, caller: str, form: JobForm, told: dict[str, Any], key: str | None
) -> Job | None:
    """The job that the same request with an upload has made: the upload itself is gone since."""
    if key is None or form.upload_id is None:
        return None
    mark = Key(key, fingerprint(form.upload_id, told))
    return await asyncio.to_thread(jobs.claimed, caller, mark)


async def _accepted(
    jobs: Jobs,
    serving: Serving,
    caller: str,
    form: JobForm,
    told: dict[str, Any],
    file: BinaryIO,
    label: str | None,
    key: str | None,
) -> Job:
    """Copied, hashed, decoded for its length, then kept."""
    draft = await asyncio.to_thread(jobs.store.blobs.copy, file)
    try:
        mark = None
        if key is not None:
            mark = Key(key, fingerprint(form.upload_id or draft.name, told))
            before = await asyncio.to_thread(jobs.claimed, caller, mark)
            if before is not None:
                return before
        total_s = await _length_s(serving, draft)
        serving.admission.charge(caller, total_s)
        hook = None
        if form.webhook_url is not None:
            hook = Hook(form.webhook_url, form.webhook_secret)
        new = New(new_id(), caller, label, total_s, told, shown(form), hook)
        return await asyncio.to_thread(jobs.submit, new, draft, mark)
    finally:
        await asyncio.to_thread(draft.discard)


async def _length_s(serving: Serving, draft: Draft) -> float:
    """Raises ApiError for what is no audio, or too long."""
    await asyncio.to_thread(draft.flush)
    with draft.path.open("rb") as file:
        spool = await serving.decoded(file)
    spool.close()
    return spool.duration_s


@asynccontextmanager
async def _audio(
    jobs: Jobs, caller: str, form: JobForm, received: Received
) -> AsyncIterator[tuple[BinaryIO, str | None]]:
    """The file of the request, or of the upload that it names, and what the client calls it."""
    if received.file is not None:
        yield received.file, received.name and received.name[:LONGEST_LABEL]
        return
    assert form.upload_id is not None
    upload = await asyncio.to_thread(jobs.uploads.get, form.upload_id, caller)
    with jobs.uploads.whole(form.upload_id, caller) as whole:
        yield whole, upload.label


@asynccontextmanager
async def _claimed(jobs: Jobs, caller: str, key: str | None) -> AsyncIterator[None]:
    """While the first request with a key is coming in, a second is told so."""
    if key is None:
        yield
        return
    if (caller, key) in jobs.claims:
        text = "the first request with this Idempotency-Key is still coming in"
        raise ApiError("in_progress", text, retry_after=POLL_S)
    jobs.claims.add((caller, key))
    try:
        yield
    finally:
        jobs.claims.discard((caller, key))


def _key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not (
        0 < len(key) <= LONGEST_KEY and key.isascii() and key.isprintable()
    ):
        text = f"Idempotency-Key: 1 to {LONGEST_KEY} printable ASCII characters"
        raise ApiError("invalid_value", text, param="Idempotency-Key")
    return key


def _view(job: Job, status: int = 200) -> Response:
    headers = {} if job.state in ENDED else {"Retry-After": str(POLL_S)}
    return JSONResponse(job.view(), status, headers)
