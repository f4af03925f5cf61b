"""`POST /` and `/predict`: the Hugging Face asr-diarization contract over the same engine.

Errors are `{"detail": ...}` here, as the contract's clients expect (`api.http.errors`).
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from ..dependencies import ClientDep, ServingDep, SettingsDep, admitted, transcribed
from ..errors import ApiError, unknown
from ..http.openapi import form_body
from ..settings import NO_DIARIZER
from ..speech import huggingface_contract

router = APIRouter(tags=["endpoints"])

FORM = form_body(None)
_SCHEMA = FORM["requestBody"]["content"]["multipart/form-data"]["schema"]
_SCHEMA["properties"]["parameters"] = {"type": "string", "description": "JSON"}


@router.post("/", openapi_extra=FORM)
@router.post("/predict", openapi_extra=FORM)
async def predict(
    request: Request, settings: SettingsDep, serving: ServingDep, client: ClientDep
) -> Response:
    async with admitted(request, settings, serving, client) as upload:
        fields = dict(upload.fields)
        if len(fields) < len(upload.fields):
            raise ApiError("invalid_value", "a field comes twice")
        parameters, warnings = huggingface_contract.parameters(fields.pop("parameters", None))
        if fields:
            raise unknown(next(iter(fields)), ["file", "parameters"])
        if parameters.language is not None:
            serving.check_language(parameters.language)
        diarizing = settings.diarizer != NO_DIARIZER
        options = parameters.options(diarizing=diarizing)
        bounds = parameters.bounds() if diarizing else None
        transcript, spoken = await transcribed(request, upload, options, bounds)
    warnings += parameters.warnings(diarizing=diarizing)
    return JSONResponse(huggingface_contract.answer(transcript, spoken, warnings))
