"""`/metrics` for Prometheus. It requires a key, like all routes that reveal something."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from ..dependencies import ServingDep

router = APIRouter(tags=["operations"])


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(serving: ServingDep) -> PlainTextResponse:
    text = await asyncio.to_thread(serving.metrics.text)  # some series query the job database
    return PlainTextResponse(text, media_type=CONTENT_TYPE_LATEST)
