"""`/v1/files` and `/v1/batches`: OpenAI's contract, for transcriptions. See docs/openai-batches.md.

A file belongs to its API key: for other keys it does not exist.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import ValidationError
from starlette.responses import Response, StreamingResponse

from ..batches import Batches, BatchForm, FileForm, Files, StoredFile
from ..dependencies import Caller, ClientDep, SettingsDep, part, reserve
from ..errors import ApiError
from ..http.bodies import HEADERS, Form, file_response, json_object, receive_form
from ..http.openapi import form_body, json_body
from ..jobs.submissions import IdempotencyKey, fingerprint
from ..settings import Settings
from ..speech.forms import parse
from ..wording import field_of, told
from .jobs import JobsDep, idempotency_key, place_of

MAX_LABEL_LENGTH = 255

files_router = APIRouter(prefix="/v1/files", tags=["files"])
router = APIRouter(prefix="/v1/batches", tags=["batches"])

FilesDep = Annotated[Files, Depends(part("files", Files))]
BatchesDep = Annotated[Batches, Depends(part("batches", Batches))]


@files_router.post("", openapi_extra=form_body(FileForm))
async def upload(
    request: Request, settings: SettingsDep, jobs: JobsDep, files: FilesDep, client: ClientDep
) -> dict[str, Any]:
    """Keep a file: the requests of a batch (`purpose=batch`) or audio (`purpose=user_data`)."""
    await asyncio.to_thread(jobs.submissions.check_room)
    with reserve(request, client, resumable=True):
        async with receive_form(request, settings) as received:
            form = parse(FileForm, received.fields)
            file = await asyncio.to_thread(_kept, files, settings, client.owner, form, received)
    return file.view()


@files_router.get("", name="listed")
async def listed_files(
    files: FilesDep,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    after: str | None = None,
) -> dict[str, Any]:
    """List files, the latest first; `after` is the id of the last file of the previous page."""
    place = await place_of(after, files.get, caller, "file")
    page, more = await asyncio.to_thread(files.page, caller, limit, place)
    return {"object": "list", "data": [file.view() for file in page], "has_more": more}


@files_router.get("/{id}", name="one")
async def one_file(id: str, files: FilesDep, batches: BatchesDep, caller: Caller) -> dict[str, Any]:
    written = await asyncio.to_thread(batches.output, id, caller)
    if written is not None:
        return written[0].view()
    return (await asyncio.to_thread(files.get, id, caller)).view()


@files_router.head("/{id}/content", include_in_schema=False)
@files_router.get("/{id}/content")
async def content(
    id: str, request: Request, files: FilesDep, batches: BatchesDep, caller: Caller
) -> Response:
    """The file, byte for byte; `Range` is supported for what was uploaded."""
    written = await asyncio.to_thread(batches.output, id, caller)
    if written is not None:
        return StreamingResponse(written[1], media_type="application/octet-stream", headers=HEADERS)
    file = await asyncio.to_thread(files.get, id, caller)
    path = await asyncio.to_thread(files.path, id, caller)
    try:
        return await file_response(
            request, path, filename=file.filename, media_type="application/octet-stream"
        )
    except FileNotFoundError as error:  # deleted in between
        raise ApiError("file_not_found", "there is no such file") from error


@files_router.delete("/{id}")
async def delete(id: str, files: FilesDep, batches: BatchesDep, caller: Caller) -> dict[str, Any]:
    """Delete a file. Jobs that use it keep its content until they are deleted."""
    if await asyncio.to_thread(batches.output, id, caller) is not None:
        text = "what a batch has written is read from its jobs: delete them under /v1/jobs"
        raise ApiError("conflict", text)
    await asyncio.to_thread(files.delete, id, caller)
    return {"id": id, "object": "file", "deleted": True}


@router.post("", openapi_extra=json_body(BatchForm))
async def create(
    request: Request, batches: BatchesDep, jobs: JobsDep, caller: Caller
) -> dict[str, Any]:
    """Create a batch from an uploaded file; or return the one that the same Idempotency-Key has created."""
    key = idempotency_key(request)
    try:
        form = BatchForm.model_validate(await json_object(request))
    except ValidationError as error:
        place, message = told(error.errors(), BatchForm.model_fields)
        raise ApiError("invalid_value", f"{place}: {message}", param=field_of(place)) from error
    jobs.serving.check()
    await asyncio.to_thread(jobs.submissions.check_capacity, caller, keyed=bool(caller))
    mark = None
    if key is not None:
        mark = IdempotencyKey(key, fingerprint("batch", form.model_dump(mode="json")))
    return (await asyncio.to_thread(batches.create, caller, form, mark)).view()


@router.get("")
async def listed(
    batches: BatchesDep,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: str | None = None,
) -> dict[str, Any]:
    """List batches, the latest first; `after` is the id of the last batch of the previous page."""
    place = await place_of(after, batches.get, caller, "batch")
    page, more = await asyncio.to_thread(batches.page, caller, limit, place)
    return {"object": "list", "data": [batch.view() for batch in page], "has_more": more}


@router.get("/{id}")
async def one(id: str, batches: BatchesDep, caller: Caller) -> dict[str, Any]:
    return (await asyncio.to_thread(batches.get, id, caller)).view()


@router.post("/{id}/cancel")
async def cancel(id: str, batches: BatchesDep, caller: Caller) -> dict[str, Any]:
    """Cancel a batch: what is finished is in its output."""
    return (await asyncio.to_thread(batches.cancel, id, caller)).view()


def _kept(
    files: Files, settings: Settings, owner: str, form: FileForm, received: Form
) -> StoredFile:
    draft = files.store.blobs.copy(received.required_file())
    try:
        if not draft.size:
            raise ApiError("empty_file", "the file is empty", param="file")
        name = (received.name or "")[:MAX_LABEL_LENGTH] or "file"
        kept_s = form.expires_after.seconds if form.expires_after else settings.file_retention_s
        return files.add(owner, form.purpose, name, draft, float(kept_s))
    finally:
        draft.discard()
