"""`/metrics`, for Prometheus. Behind a key like everything else that tells something."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from ..dependencies import Served

router = APIRouter(tags=["operations"])


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(serving: Served) -> PlainTextResponse:
    text = await asyncio.to_thread(serving.metrics.text)  # some series ask the jobs' database
    return PlainTextResponse(text, media_type=CONTENT_TYPE_LATEST)
