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
    """503 until the models are loaded and warm, while disks are full or the job database cannot be written,
    and from the announcement of the end."""
    readiness: Readiness = request.app.state.readiness
    await readiness.check()
    return "OK"
