"""Routes that are gone: for one version each answers 410 with what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fastapi import APIRouter, Request

from ..errors import ApiError
from ..http.errors import METHODS

GONE: Mapping[str, str] = MappingProxyType(
    {
        "/v1/usage": "a gateway in front counts what keys use, such as LiteLLM's proxy",
        "/v1/files{rest:path}": "upload a recording with POST /v1/jobs, or by pieces with /v1/uploads",
        "/v1/batches{rest:path}": "send each recording to POST /v1/jobs, which are done one after the other",
        "/v1/jobs/{id}/peaks": "compute the waveform from GET /v1/jobs/{id}/audio",
    }
)
"""One sentence what to use instead, by the route's path. It may end with `{rest:path}`."""


async def gone(request: Request) -> None:
    path = request.scope["route"].path
    raise ApiError("gone", f"{path} is gone: {GONE[path]}")


def routes() -> APIRouter:
    """The routes of `GONE`, for every method and without a key."""
    router = APIRouter(include_in_schema=False, tags=["gone"])
    for path in GONE:
        router.add_api_route(path, gone, methods=list(METHODS))
    return router
