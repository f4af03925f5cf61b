"""Is it alive, and is it ready? No key is asked for, nothing is told."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from api.dependencies import Served
from api.errors import ApiError

router = APIRouter(tags=["health"])


@router.get("/health", response_class=PlainTextResponse)
async def health() -> str:
    """The loop turns: answers while every slot is busy."""
    return "OK"


@router.get("/ready", response_class=PlainTextResponse)
async def ready(request: Request, serving: Served) -> str:
    """503 until the model is loaded and every shape warm, and again from the first sign of an end."""
    if serving.state != "ready":
        raise ApiError("not_ready", f"the server is {serving.state}")
    texting = request.app.state.texting
    if texting.state not in ("off", "ready"):
        raise ApiError("not_ready", f"the text model is {texting.state}")
    return "OK"
