"""`POST /` and `/predict`: the Hugging Face asr-diarization contract over the same engine.

Errors are `{"detail": ...}` here, as the contract's clients expect (`api.http.errors`).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from ..dependencies import ClientDep, ServingDep, SettingsDep
from ..errors import ApiError
from ..settings import NO_DIARIZER
from ..speech import huggingface_contract
from ..speech.upload import admitted, all_parts, while_connected

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
    request: Request, settings: SettingsDep, serving: ServingDep, client: ClientDep
) -> Response:
    async with admitted(request, settings, serving, client) as admission:
        fields = dict(admission.upload.fields)
        if len(fields) < len(admission.upload.fields):
            raise ApiError("invalid_value", "a field comes twice")
        parameters, warnings = huggingface_contract.parameters(fields.pop("parameters", None))
        if fields:
            raise ApiError("invalid_value", f"unknown field {next(iter(fields))[:100]!r}")
        if parameters.language not in (None, "auto"):
            serving.language(parameters.language)
        diarizing = settings.diarizer != NO_DIARIZER
        options = parameters.options(diarizing=diarizing)
        diarization = (
            await serving.speakers.start(bounds=parameters.bounds()) if diarizing else None
        )
        with ExitStack() as cleanup:
            if diarization is not None:
                cleanup.callback(admission.reservation.release)
                cleanup.callback(diarization.close)
            tap = diarization.add_samples if diarization is not None else None
            stream = await admission.follow(options, tap)
            cleanup.callback(stream.cancel)
            await all_parts(request, stream)
            transcript, spoken = stream.transcript, None
            if diarization is not None:
                spoken = await while_connected(
                    request, diarization.assign(transcript, huggingface_contract.speaker)
                )
    drafting = serving.facts.drafting
    warnings += parameters.warnings(drafting=drafting, diarizing=diarizing)
    return JSONResponse(huggingface_contract.answer(transcript, spoken, warnings))
