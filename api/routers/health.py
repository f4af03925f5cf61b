"""Is it alive, and is it ready? No key is asked for, nothing is told."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from ..process.readiness import Readiness

router = APIRouter(tags=["health"])


@router.get("/health", response_class=PlainTextResponse)
@router.head("/health", include_in_schema=False)
async def health() -> str:
    """The loop turns: answers while every slot is busy."""
    return "OK"


@router.get("/ready", response_class=PlainTextResponse)
@router.head("/ready", include_in_schema=False)
async def ready(request: Request) -> str:
    """503 until the model is loaded and every shape warm, while disks are full or the jobs' database cannot
    be written, and again from the first sign of an end."""
    readiness: Readiness = request.app.state.readiness
    await readiness.check()
    return "OK"
