"""`POST /` and `/predict`: the Hugging Face asr-diarization contract over the same engine.

Errors are `{"detail": ...}` here, as its clients expect; `api.http.exception_handlers` sees to that.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from ..dependencies import Caller, Configured, Served
from ..errors import ApiError
from ..settings import NONE
from ..speech import huggingface_contract
from ..speech.entry import admitted, attended, parts

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


@router.post("/", openapi_extra=FORM)
@router.post("/predict", openapi_extra=FORM)
async def predict(
    request: Request, settings: Configured, serving: Served, caller: Caller
) -> Response:
    async with admitted(request, settings, serving, caller) as entry:
        fields = dict(entry.upload.fields)
        if len(fields) < len(entry.upload.fields):
            raise ApiError("invalid_value", "a field comes twice")
        parameters, warnings = huggingface_contract.parameters(fields.pop("parameters", None))
        if fields:
            raise ApiError("invalid_value", f"unknown field {next(iter(fields))[:100]!r}")
        if parameters.language not in (None, "auto"):
            serving.language(parameters.language)
        diarizing = settings.diarizer != NONE
        chosen = parameters.options(diarizing=diarizing)
        hearing = await serving.speakers.hear(bounds=parameters.bounds()) if diarizing else None
        with ExitStack() as over:
            if hearing is not None:
                over.callback(entry.place.leave)
                over.callback(hearing.close)
            following = await entry.follow(chosen, hearing.hear if hearing is not None else None)
            over.callback(following.cancel)
            await parts(request, following)
            outcome = following.outcome
            assert outcome is not None and outcome.transcript is not None  # else it was raised
            transcript, spoken = outcome.transcript, None
            if hearing is not None:
                spoken = await attended(
                    request, hearing.told(transcript, huggingface_contract.speaker)
                )
    drafting = serving.transcriber.whisper.draft is not None
    warnings += parameters.warnings(drafting=drafting, diarizing=diarizing)
    return JSONResponse(huggingface_contract.answer(transcript, spoken, warnings))
