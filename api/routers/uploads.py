"""`/v1/uploads`: resumable uploads by tus 1.0 (core, creation, termination; https://tus.io).

    POST   /v1/uploads        Upload-Length: 1048576           -> 201, Location
    HEAD   /v1/uploads/{id}                                    -> Upload-Offset
    PATCH  /v1/uploads/{id}   Upload-Offset: 0, the bytes      -> 204, Upload-Offset
    DELETE /v1/uploads/{id}                                    -> 204

A finished upload becomes a job by `upload_id` in `POST /v1/jobs`.
"""

from __future__ import annotations

import asyncio
import base64
from contextlib import suppress

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from ..dependencies import Caller, ClientDep
from ..errors import ApiError, invalid
from ..http.bodies import in_thread, label, whole
from ..uploads import Upload
from .jobs import JobsDep

VERSION = "1.0.0"
TUS = {"Tus-Resumable": VERSION, "Cache-Control": "no-store"}
MAX_LENGTH = 2**60
"""Bytes."""

BODY = "application/offset+octet-stream"

router = APIRouter(prefix="/v1/uploads", tags=["jobs"])


def tus_version(request: Request) -> None:
    given = request.headers.get("tus-resumable", VERSION)  # optional for curl
    if given != VERSION:
        text = f"tus {given} is not supported; this server uses {VERSION}"
        raise ApiError("unsupported_version", text, param="Tus-Resumable")


CHECKED = [Depends(tus_version)]


@router.options("", status_code=204)
def options(jobs: JobsDep) -> Response:
    headers = {
        "Tus-Version": VERSION,
        "Tus-Extension": "creation,termination",
        "Tus-Max-Size": str(jobs.settings.max_upload_bytes),
    }
    return Response(status_code=204, headers={**TUS, **headers})


@router.post("", status_code=201, dependencies=CHECKED)
def create(request: Request, jobs: JobsDep, client: ClientDep) -> Response:
    length = _number(request, "Upload-Length")
    name = label(_filename(request.headers.get("upload-metadata", "")))
    jobs.submissions.check_capacity(client.owner, keyed=False)
    upload = jobs.uploads.create(client.owner, length, name, client=client.name)
    location = {"Location": f"/v1/uploads/{upload.id}", "Upload-Offset": "0"}
    return Response(status_code=201, headers={**TUS, **location})


@router.head("/{id}", dependencies=CHECKED)
def offset(id: str, jobs: JobsDep, caller: Caller) -> Response:
    return Response(status_code=200, headers=_headers(jobs.uploads.get(id, caller)))


@router.patch("/{id}", status_code=204, dependencies=CHECKED)
async def append(id: str, request: Request, jobs: JobsDep, client: ClientDep) -> Response:
    """Append to the upload. The bytes that arrive before a client disconnects are kept."""
    if request.headers.get("content-type") != BODY:
        raise ApiError("unsupported_media_type", f"send the bytes as {BODY}")
    start = _number(request, "Upload-Offset")
    jobs.submissions.check_room()
    caller = client.owner
    with jobs.serving.admission.reserve(client, resumable=True):
        async with in_thread(jobs.uploads.appending(id, caller, start)) as part:
            if whole(request.headers.get("content-length", "0"), part.length - start) is None:
                text = f"the body goes beyond the {part.length} bytes declared"
                raise ApiError("file_too_large", text)
            async for piece in request.stream():
                await asyncio.to_thread(part.write, piece)
    upload = await asyncio.to_thread(jobs.uploads.get, id, caller)
    return Response(status_code=204, headers=_headers(upload))


@router.delete("/{id}", status_code=204, dependencies=CHECKED)
def delete(id: str, jobs: JobsDep, caller: Caller) -> Response:
    jobs.uploads.delete(id, caller)
    return Response(status_code=204, headers=TUS)


def _headers(upload: Upload) -> dict[str, str]:
    return {**TUS, "Upload-Offset": str(upload.offset), "Upload-Length": str(upload.length)}


def _number(request: Request, name: str) -> int:
    number = whole(request.headers.get(name, ""), MAX_LENGTH)
    if number is None:
        raise invalid(name, "give a number of bytes")
    return number


def _filename(metadata: str) -> str:
    """The name in tus metadata: `name base64, name base64`. An invalid one is none."""
    for pair in metadata.split(","):
        name, _, value = pair.strip().partition(" ")
        if name == "filename":
            with suppress(ValueError):  # also for text that is not ASCII
                return base64.b64decode(value, validate=True).decode()
    return ""
