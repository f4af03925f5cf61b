"""`/v1/batches`: OpenAI's contract, for transcriptions, translations and texts.

A batch belongs to its API key: for other keys it does not exist. See docs/openai-batches.md.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel

from ..batches.lines import BatchForm, parse_batch
from ..batches.service import Batches
from ..batches.table import Batch, BatchObject
from ..batches.text_lines import FORMS
from ..dependencies import Caller, check_scope, part
from ..http.bodies import json_object
from ..http.openapi import json_body
from ..jobs.submissions import IdempotencyKey, fingerprint
from .jobs import JobsDep, idempotency_key, place_of

router = APIRouter(prefix="/v1/batches", tags=["batches"])


BatchesDep = Annotated[Batches, Depends(part("batches", Batches))]


class BatchList(BaseModel):
    """A page of batches; `last_id` is `after` of the next one."""

    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


@router.post("", openapi_extra=json_body(BatchForm))
async def create(
    request: Request, batches: BatchesDep, jobs: JobsDep, caller: Caller
) -> BatchObject:
    """Create a batch from an uploaded file; or return the one that the same Idempotency-Key has created.

    The file is checked later: the batch is `validating` until then.
    """
    key = idempotency_key(request)
    form = parse_batch(await json_object(request))
    if form.endpoint in FORMS:
        check_scope(request, caller, "text")
    await asyncio.to_thread(jobs.submissions.check_room)
    mark = None
    if key is not None:
        mark = IdempotencyKey(key, fingerprint("batch", form.model_dump(mode="json")))
    return await _view(batches, await asyncio.to_thread(batches.create, caller, form, mark))


@router.get("")
async def listed(
    batches: BatchesDep,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: str | None = None,
) -> BatchList:
    """List batches, the latest first; `after` is the id of the last batch of the previous page."""
    place = await place_of(after, batches.get, caller, "batch")
    page, more = await asyncio.to_thread(batches.table.page, caller, limit, place)
    ids = [batch.id for batch in page]
    data = await asyncio.to_thread(batches.views, page)
    return BatchList(
        data=data,
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
        has_more=more,
    )


@router.get("/{id}")
async def one(id: str, batches: BatchesDep, caller: Caller) -> BatchObject:
    return await _view(batches, await asyncio.to_thread(batches.get, id, caller))


@router.post("/{id}/cancel")
async def cancel(id: str, batches: BatchesDep, caller: Caller) -> BatchObject:
    """Cancel a batch: what is finished is in its output, once the batch is `cancelled`."""
    return await _view(batches, await asyncio.to_thread(batches.cancel, id, caller))


async def _view(batches: Batches, batch: Batch) -> BatchObject:
    (view,) = await asyncio.to_thread(batches.views, [batch])
    return view
