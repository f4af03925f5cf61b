"""`/health` and `/ready`: liveness and readiness, without a key and without details."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from ..process.readiness import Readiness

router = APIRouter(tags=["health"])


@router.get("/health", response_class=PlainTextResponse)
@router.head("/health", include_in_schema=False)
async def health() -> str:
    """Whether the process answers, also while every slot is busy."""
    return "OK"


@router.get("/ready", response_class=PlainTextResponse)
@router.head("/ready", include_in_schema=False)
async def ready(request: Request) -> str:
    """503 until the models are loaded and warm, while the disk for uploads is full or the job database cannot
    be written, and from the announcement of the end. If only jobs and files cannot be stored, the text says
    so."""
    readiness: Readiness = request.app.state.readiness
    storage = await readiness.check()
    return "OK" if storage.full is None else f"OK, but cannot store: {storage.full}"
