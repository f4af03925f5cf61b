"""`POST /` and `/predict`: the Hugging Face asr-diarization contract over the same engine.

Errors are `{"detail": ...}` here, as its clients expect; `api.app` sees to that.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.responses import Response

from api import ancestor
from api.dependencies import Caller, Configured, Served
from api.entry import admitted, parts
from api.errors import ApiError

PATHS = ("/", "/predict")

public = APIRouter(tags=["endpoints"])
router = APIRouter(tags=["endpoints"])

FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "parameters": {"type": "string", "description": "JSON"},
                    },
                }
            }
        },
    }
}


@public.get("/", response_class=PlainTextResponse)
async def alive() -> str:
    return "OK"


@router.post("/", openapi_extra=FORM)
@router.post("/predict", openapi_extra=FORM)
async def predict(
    request: Request, settings: Configured, serving: Served, caller: Caller
) -> Response:
    async with admitted(request, settings, serving, caller) as entry:
        fields = dict(entry.upload.fields)
        parameters, warnings = ancestor.parameters(fields.pop("parameters", None))
        if fields:
            raise ApiError("invalid_value", f"unknown field {next(iter(fields))!r}")
        if parameters.language not in (None, "auto"):
            serving.language(parameters.language)
        following = await entry.follow(parameters.options())
    await parts(request, following)
    outcome = following.outcome
    assert outcome is not None and outcome.transcript is not None  # a failure was raised before
    drafting = serving.transcriber.whisper.draft is not None
    return JSONResponse(
        ancestor.answer(outcome.transcript, warnings + parameters.warnings(drafting=drafting))
    )
