"""`/v1/batches`: OpenAI's contract, for transcriptions. See docs/openai-batches.md."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import ValidationError

from ..batches import BatchForm
from ..dependencies import Caller
from ..errors import ApiError
from ..http.bodies import json_object
from ..http.openapi import json_body
from ..jobs.submissions import IdempotencyKey, fingerprint
from .files import BatchesDep
from .jobs import JobsDep, idempotency_key, place_of

router = APIRouter(prefix="/v1/batches", tags=["batches"])


@router.post("", openapi_extra=json_body(BatchForm))
async def create(
    request: Request, batches: BatchesDep, jobs: JobsDep, caller: Caller
) -> dict[str, Any]:
    """Create a batch from an uploaded file; or return the one that the same Idempotency-Key has created."""
    key = idempotency_key(request)
    try:
        form = BatchForm.model_validate(await json_object(request))
    except ValidationError as error:
        first = error.errors()[0]
        param = str(first["loc"][0])[:100]
        raise ApiError("invalid_value", f"{param}: {first['msg']}", param=param) from error
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
