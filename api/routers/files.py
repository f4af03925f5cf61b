"""`/v1/files`: OpenAI's contract, for the input and output of batches and for audio.

A file belongs to its API key: for other keys it does not exist. See docs/openai-batches.md.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from ..dependencies import Caller, ClientDep, SettingsDep, part, reserve
from ..errors import ApiError
from ..files import DeletedFile, FileForm, FileObject, Files, Purpose, StoredFile
from ..http.bodies import file_response
from ..http.openapi import form_body
from ..settings import Settings
from ..speech.forms import parse
from ..uploads.multipart import Received, receive_form
from .jobs import JobsDep, place_of

MAX_LABEL_LENGTH = 255
UNNAMED = "file"

router = APIRouter(prefix="/v1/files", tags=["files"])


FilesDep = Annotated[Files, Depends(part("files", Files))]


class FileList(BaseModel):
    """A page of files; `last_id` is `after` of the next one."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


@router.post("", openapi_extra=form_body(FileForm))
async def upload(
    request: Request,
    settings: SettingsDep,
    jobs: JobsDep,
    files: FilesDep,
    client: ClientDep,
) -> FileObject:
    """Keep a file: the requests of a batch (`purpose=batch`) or audio (`purpose=user_data`)."""
    await asyncio.to_thread(jobs.submissions.check_room)
    await asyncio.to_thread(files.check_count, client.owner)
    reservation = reserve(request, client, resumable=True)
    try:
        async with receive_form(request, settings) as received:
            form = parse(FileForm, received.fields)
            file = await asyncio.to_thread(_kept, files, settings, client.owner, form, received)
    finally:
        reservation.release()
    return file.view()


@router.get("")
async def listed(
    files: FilesDep,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    after: str | None = None,
    order: Literal["asc", "desc"] = "desc",
    purpose: Purpose | None = None,
) -> FileList:
    """List files by time of creation; `after` is the id of the last file of the previous page."""
    place = await place_of(after, files.get, caller, "file")
    page, more = await asyncio.to_thread(files.page, caller, limit, place, order, purpose)
    ids = [file.id for file in page]
    return FileList(
        data=[file.view() for file in page],
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
        has_more=more,
    )


@router.get("/{id}")
async def one(id: str, files: FilesDep, caller: Caller) -> FileObject:
    return (await asyncio.to_thread(files.get, id, caller)).view()


@router.head("/{id}/content", include_in_schema=False)
@router.get("/{id}/content")
async def content(id: str, request: Request, files: FilesDep, caller: Caller) -> Response:
    """The file, byte for byte; `Range` is supported."""
    file = await asyncio.to_thread(files.get, id, caller)
    path = await asyncio.to_thread(files.path, id, caller)
    try:
        return await file_response(
            request, path, filename=file.filename, media_type="application/octet-stream"
        )
    except FileNotFoundError as error:  # deleted in between
        raise ApiError("file_not_found", "there is no such file") from error


@router.delete("/{id}")
async def delete(id: str, files: FilesDep, caller: Caller) -> DeletedFile:
    """Delete a file. Batches and jobs that use it keep its content until they end."""
    await asyncio.to_thread(files.delete, id, caller)
    return DeletedFile(id=id)


def _kept(
    files: Files, settings: Settings, owner: str, form: FileForm, received: Received
) -> StoredFile:
    if received.file is None:
        raise ApiError("missing_file", "the form has no file", param="file")
    draft = files.store.blobs.copy(received.file)
    try:
        if not draft.size:
            raise ApiError("empty_file", "the file is empty", param="file")
        if form.purpose == "batch" and draft.size > settings.max_batch_bytes:
            text = f"a file of requests has at most {settings.max_batch_bytes} bytes"
            raise ApiError("file_too_large", text, param="file")
        name = (received.name or "")[:MAX_LABEL_LENGTH] or UNNAMED
        expiry = float(form.expires_after.seconds) if form.expires_after else None
        return files.add(owner, form.purpose, name, draft, expiry)
    finally:
        draft.discard()
