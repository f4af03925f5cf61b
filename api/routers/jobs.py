"""`/v1/jobs`: long audio, and clients that cannot keep a connection open. See docs/jobs.md.

An answer of 202 means that the audio and every parameter are on disk. A job belongs to its API key: for
other keys it does not exist. Its progress is a stream of server-sent events:

    event: segment
    id: 7
    data: {"k": 2, "segments": [{"id": 11, "start": 61.2, "end": 64.0, "text": " ..."}]}

Event ids are numbers of the job's log, so a client that reconnects names the last one it has seen and
misses nothing.
"""

from __future__ import annotations

import asyncio
import json
import mimetypes
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import chain, count
from typing import IO, Annotated, Any, BinaryIO, Literal, cast
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from forescribe.asr.errors import AudioError, OutputError
from forescribe.asr.formats import files
from forescribe.asr.formats.subtitles import PLAIN, LineRules
from forescribe.asr.formats.transcript import Transcript

from ..dependencies import Caller, ClientDep, ServingDep, SettingsDep, part
from ..errors import ApiError, checked, invalid
from ..http.bodies import (
    HEADERS,
    Form,
    RangedFile,
    in_thread,
    json_object,
    label,
    receive_form,
    small_field,
    split_name,
    whole,
)
from ..http.event_streams import PING, PING_S, EventStream
from ..http.openapi import form_body, json_body
from ..jobs.corrections import MAX_BYTES, CorrectedJobs, Corrections, Version
from ..jobs.service import MAX_LABEL_LENGTH, Jobs, Operations
from ..jobs.store import Store
from ..jobs.submissions import RETRY_S, JobForm, Key, check
from ..jobs.tables import ENDED, Job, LogEntry, State
from ..speech.answers import answer
from ..speech.forms import check_model, parse

POLL_S = 0.25
"""Seconds between reads of the log. Other processes write to it too, so there is no notification."""

MAX_KEY_LENGTH = 255
MAX_SPEAKERS = 100

Limit = Annotated[int | None, Query(ge=1, le=1000)]

FileFormat = Literal["txt", "srt", "vtt", "tsv", "json", "rttm", "md", "docx"]
"""What the command writes."""

ResultFormat = Literal[FileFormat, "text", "verbose_json", "diarized_json", "transcript"]
"""`json` is OpenAI's; `transcript` is the command's."""

SUBTITLES = {"srt": "text/plain", "vtt": "text/vtt"}

DOCUMENTS = {
    **dict.fromkeys(("txt", "tsv", "rttm"), "text/plain"),
    **SUBTITLES,
    "md": "text/markdown",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
}
"""Formats that are files and nothing else here, with their media types."""

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


JobsDep = Annotated[Jobs, Depends(part("jobs", Jobs))]
"""Routes that need jobs exist only if there are jobs."""


@router.post("", status_code=202, openapi_extra=form_body(JobForm, file_required=False))
async def submit(
    request: Request, settings: SettingsDep, serving: ServingDep, jobs: JobsDep, client: ClientDep
) -> Response:
    """Accept a job; or return the one that the same Idempotency-Key has created before."""
    serving.check()
    name = request.headers.get("idempotency-key")
    if name is not None and not (
        0 < len(name) <= MAX_KEY_LENGTH and name.isascii() and name.isprintable()
    ):
        raise invalid("Idempotency-Key", f"1 to {MAX_KEY_LENGTH} printable ASCII characters")
    submissions, caller = jobs.submissions, client.owner
    await asyncio.to_thread(submissions.check_capacity, caller, keyed=bool(caller))
    admitted = serving.admission.reserve(client, stored=True)
    with admitted as reservation, submissions.reserved(caller, name):
        async with receive_form(request, settings) as received:
            reservation.start()
            form = check(parse(JobForm, received.fields), serving, settings)
            check_model(form.model, settings)
            if (form.upload_id is None) == (received.file is None):
                text = "give a file, or the upload_id of a finished upload"
                raise ApiError("missing_file", text, param="file")
            key = None
            if name is not None:
                key = await asyncio.to_thread(Key.of, name, form, received.file)
            job = await asyncio.to_thread(submissions.created_by, caller, key)
            if job is None:
                async with _recording(jobs, caller, form, received) as (audio, called):
                    job = await submissions.accept(caller, form, audio, called, key)
                if form.upload_id is not None:  # its bytes are the job's now
                    await asyncio.to_thread(jobs.uploads.delete, form.upload_id, caller)
    headers = {"Location": f"/v1/jobs/{job.id}", "Retry-After": str(RETRY_S)}
    return JSONResponse(job.view(), 202, headers)


@router.get("")
def listed(
    jobs: JobsDep,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: str | None = None,
    state: State | None = None,
) -> dict[str, Any]:
    """List jobs, the latest first; `after` is the id of the last job of the previous page."""
    page, more = jobs.page(caller, limit, after, state)
    return {"object": "list", "data": [job.view() for job in page], "has_more": more}


@router.get("/search")
def search(
    jobs: JobsDep,
    caller: Caller,
    q: Annotated[str, Query(max_length=200)],
    after: str | None = None,
) -> dict[str, Any]:
    """Where words are said in 100 results, the latest first; ask again with the answer's `after` until it is
    null."""
    found, last = jobs.search(caller, q, after)
    return {"object": "list", "data": found, "after": last}


@router.get("/archive")
async def archive(jobs: JobsDep, caller: Caller, response_format: FileFormat = "txt") -> Response:
    """All results as files in one zip, the latest first, as they have been corrected."""
    headers = {**HEADERS, "Content-Disposition": 'attachment; filename="recordings.zip"'}
    zipped = _zipped(jobs, caller, response_format)
    return StreamingResponse(zipped, media_type="application/zip", headers=headers)


@router.get("/{id}")
def one(id: str, jobs: JobsDep, caller: Caller) -> Response:
    return _view(jobs.operations.get(id, caller))


@router.patch("/{id}")
async def rename(id: str, request: Request, jobs: JobsDep, caller: Caller) -> Response:
    """Another name for the recording, `label`, in the query, a form or JSON; the ending of its file stays."""
    given = await small_field(request, "label")
    name = label(given, len(given)) if isinstance(given, str) else None
    if name is None:
        raise invalid("label", "give a name")
    return _view(await asyncio.to_thread(jobs.operations.rename, id, caller, name))


@router.get("/{id}/events")
async def events(id: str, request: Request, jobs: JobsDep, caller: Caller) -> Response:
    """Stream server-sent events; `Last-Event-ID` continues after that event."""
    await asyncio.to_thread(jobs.operations.get, id, caller)
    last = whole(request.headers.get("last-event-id", "0"), 10**11)
    if last is None:
        raise invalid("Last-Event-ID", "not an event of this job")
    return EventStream(follow(jobs, id, last), lambda: None)


def line_rules(
    max_line_width: Limit = None,
    max_line_count: Limit = None,
    max_words_per_line: Limit = None,
    highlight_words: bool = False,
) -> LineRules:
    if max_line_count is not None and max_line_width is None and max_words_per_line is None:
        raise invalid("max_line_count", "give max_line_width or max_words_per_line too")
    return LineRules(max_line_width, max_line_count, max_words_per_line, highlight_words)


@router.get("/{id}/result")
def result(
    id: str,
    jobs: JobsDep,
    caller: Caller,
    rules: Annotated[LineRules, Depends(line_rules)],
    response_format: ResultFormat = "json",
    corrected: bool = True,
    speaker_names: bool = True,
) -> Response:
    """The result in any format, without decoding again; 409 before the job has ended. `corrected=false`: as
    it was decoded, without the corrections of people. The others are for `srt` and `vtt`."""
    if response_format not in SUBTITLES and not (rules.plain and speaker_names):
        text = "only srt and vtt have lines and names of speakers to set"
        raise invalid("response_format", text)
    source: CorrectedJobs | Operations = jobs.corrected if corrected else jobs.operations
    job, transcript = jobs.operations.get(id, caller), source.transcript(id, caller)
    if response_format in ("diarized_json", "rttm") and not transcript.diarized:
        text = f"{response_format}: the job has no speakers; POST /v1/jobs/{id}/diarize adds them"
        raise ApiError("conflict", text, param="response_format")
    if response_format == "transcript":
        return JSONResponse(transcript.to_dict())
    if response_format in DOCUMENTS:
        if not speaker_names:
            transcript = transcript.renamed(dict.fromkeys(transcript.speakers))
        content = _rendered(response_format, transcript, job, rules)
        return Response(content, media_type=DOCUMENTS[response_format])
    return answer(response_format, transcript, granularities=("word", "segment"))


@router.get("/{id}/corrections")
def corrections(
    id: str,
    jobs: JobsDep,
    caller: Caller,
    version: Annotated[int | None, Query(ge=0, le=1_000_000_000)] = None,
) -> Response:
    """What people have corrected, the latest version or an earlier one; `ETag` is for the next `PUT`."""
    return _version(jobs.corrected.get(id, caller, version))


@router.put("/{id}/corrections", openapi_extra=json_body(Corrections))
async def correct(id: str, request: Request, jobs: JobsDep, caller: Caller) -> Response:
    """Save a new version of the corrections; `If-Match` is the `ETag` of the version that was changed."""
    etag = request.headers.get("if-match")
    if etag is None:
        text = f"If-Match: give the ETag of GET /v1/jobs/{id}/corrections"
        raise ApiError("version_required", text, param="If-Match")
    await asyncio.to_thread(jobs.operations.get, id, caller)  # before the body is read
    body = await json_object(request, MAX_BYTES)
    given = await asyncio.to_thread(checked, Corrections, body)
    return _version(await asyncio.to_thread(jobs.corrected.put, id, caller, given, etag))


@router.delete("/{id}/corrections", status_code=204)
def uncorrect(id: str, jobs: JobsDep, caller: Caller) -> Response:
    """Delete all corrections: the result is again what was decoded."""
    jobs.corrected.delete(id, caller)
    return Response(status_code=204)


@router.head("/{id}/audio", include_in_schema=False)
@router.get("/{id}/audio")
async def audio(id: str, jobs: JobsDep, caller: Caller) -> Response:
    """The uploaded file, byte for byte; `Range` is supported."""
    job = await asyncio.to_thread(jobs.operations.get, id, caller)
    name = job.label or "recording"
    guessed = mimetypes.guess_type(name)[0] or ""
    media_type = guessed if guessed.startswith(("audio/", "video/")) else "application/octet-stream"
    try:  # `inline`: browsers play it, and save it under its original name
        path = await asyncio.to_thread(jobs.store.audio, job)
        return RangedFile(
            path,
            media_type=media_type,
            headers=HEADERS,
            filename=name,
            stat_result=await asyncio.to_thread(path.stat),
            content_disposition_type="inline",
        )
    except (FileNotFoundError, AudioError) as error:  # or deleted meanwhile
        raise ApiError("not_found", "the job's audio is not kept any more") from error


@router.post("/{id}/cancel")
def cancel(id: str, jobs: JobsDep, caller: Caller) -> Response:
    """Cancel a job; a job that has ended stays as it is."""
    return _view(jobs.operations.cancel(id, caller))


@router.post("/{id}/retry", status_code=202)
def retry(id: str, jobs: JobsDep, caller: Caller) -> Response:
    """Continue a failed or cancelled job after the windows that are decoded."""
    return _view(jobs.operations.retry(id, caller), 202)


@router.post("/{id}/diarize", status_code=202)
async def diarize(id: str, request: Request, jobs: JobsDep, caller: Caller) -> Response:
    """Assign speakers again to the decoded words. `num_speakers` may be in the query, a form or JSON."""
    given, number = await small_field(request, "num_speakers"), None
    if given not in (None, "") and not (number := whole(str(given), MAX_SPEAKERS)):
        raise invalid("num_speakers", f"a number from 1 to {MAX_SPEAKERS}")
    return _view(await asyncio.to_thread(jobs.operations.diarize, id, caller, number), 202)


@router.delete("/{id}", status_code=204)
def delete(id: str, jobs: JobsDep, caller: Caller) -> Response:
    """Cancel the job if necessary, and erase its audio, text and rows."""
    jobs.operations.delete(id, caller)
    return Response(status_code=204)


class _Pieces(list[bytes]):
    """A file for `zipfile`, of what has not been sent."""

    def write(self, data: bytes) -> int:
        self.append(bytes(data))
        return len(data)

    def flush(self) -> None: ...

    def take(self) -> bytes:
        data = b"".join(self)
        self.clear()
        return data


def _zipped(jobs: Jobs, owner: str, name: FileFormat) -> Iterator[bytes]:
    """A zip of the results as it is made. One that cannot be had is a text with the reason, so that nobody
    misses it later."""
    pieces, taken = _Pieces(), set[str]()
    with ZipFile(cast(IO[bytes], pieces), "w", ZIP_DEFLATED) as zipped:
        for job in jobs.operations.results(owner):
            stem, ending = _file_stem(job), str(name)
            try:
                transcript = jobs.corrected.transcript(job.id, owner)
                if name == "rttm" and not transcript.diarized:
                    continue
                content = _rendered(name, transcript, job)
            except (ApiError, OutputError) as error:
                if isinstance(error, ApiError) and error.code in ("job_not_found", "not_found"):
                    continue  # erased meanwhile
                content, ending = f"{error}\n".encode(), "missing.txt"
            numbers = chain((stem,), (f"{stem} ({n})" for n in count(2)))
            free = next(one for one in numbers if one.casefold() not in taken)
            taken.add(free.casefold())
            made = time.localtime(job.created_at)[:6]
            zipped.writestr(ZipInfo(f"{free}.{ending}", made), content, ZIP_DEFLATED)
            yield pieces.take()
    yield pieces.take()


def _rendered(name: str, transcript: Transcript, job: Job, rules: LineRules = PLAIN) -> bytes:
    (shaped,) = files.formats(name, rules)
    return files.rendered(shaped, transcript, split_name(job.label or files.RECORDING)[0])


def _file_stem(job: Job) -> str:
    """The name of a recording as file systems take it: without special characters, and with room for a number
    and an ending in 255 bytes."""
    stem, _ = split_name(job.label or files.RECORDING)
    cut = re.sub(r'[<>:"/\\|?*]', "_", stem).encode()[:200].decode(errors="ignore")
    return cut.strip(" .") or files.RECORDING


async def follow(jobs: Jobs, id: str, after: int) -> AsyncIterator[bytes]:
    """The events of a job: its entries numbered above `after` until it ends, then `done`."""
    store, n, sent_s, stage = jobs.store, after, time.monotonic(), None
    while True:
        # The job is read first: an entry that is written between the two reads is sent now, and the end is
        # seen in the next pass.
        job = await asyncio.to_thread(store.jobs.get, id)
        entries = await asyncio.to_thread(store.jobs.entries, id, n)
        if job is None or (jobs.leaving and not entries and not job.ended):
            return  # erased, or continued by the next process: the client reconnects
        for entry in entries:
            n = entry.n
            yield await asyncio.to_thread(_event, store, job, entry)
            sent_s = time.monotonic()
        if job.stage not in (stage, None):  # no entry tells it
            stage = job.stage
            yield _encoded("stage", {"stage": stage}, n)
        if entries:
            continue
        if job.ended:
            yield _encoded("done", job.view(), n)
            return
        if time.monotonic() - sent_s > PING_S:
            yield PING
            sent_s = time.monotonic()
        await asyncio.sleep(POLL_S)


def _event(store: Store, job: Job, entry: LogEntry) -> bytes:
    """A state is the current view with the state of that time; a group's segments are empty if its text has
    been erased."""
    told = entry.data
    if entry.kind == "state":
        told = {**(store.jobs.get(job.id) or job).view(), **told}
    elif entry.kind == "progress":
        told = {**told, "total_s": job.view()["progress"]["total_s"]}
    else:
        try:
            segments = json.loads(store.files.read(job.id, told["file"]))["segments"]
        except FileNotFoundError:
            segments = []
        numbered = enumerate(segments, told["first"])
        told = {"k": told["k"], "segments": [{"id": i, **segment} for i, segment in numbered]}
    return _encoded(entry.kind, told, entry.n)


def _encoded(kind: str, data: dict[str, Any], n: int) -> bytes:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    return f"event: {kind}\nid: {n}\ndata: {text}\n\n".encode()


@asynccontextmanager
async def _recording(
    jobs: Jobs, caller: str, form: JobForm, received: Form
) -> AsyncIterator[tuple[BinaryIO, str | None]]:
    """The file of the request, or of the upload that it names, and the client's name for it."""
    if received.file is not None:
        yield received.file, received.name and received.name[:MAX_LABEL_LENGTH]
        return
    assert form.upload_id is not None
    upload = await asyncio.to_thread(jobs.uploads.get, form.upload_id, caller)
    async with in_thread(jobs.uploads.whole(form.upload_id, caller)) as file:
        yield file, upload.label


def _version(version: Version) -> Response:
    return JSONResponse(version.view(), headers={"ETag": version.etag})


def _view(job: Job, status: int = 200) -> Response:
    headers = {} if job.state in ENDED else {"Retry-After": str(RETRY_S)}
    return JSONResponse(job.view(), status, headers)
