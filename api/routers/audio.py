"""`/v1/audio/transcriptions` and `/v1/audio/translations`: OpenAI's contract.

The form is read by hand: a handler with an upload parameter would have the whole body on disk before
anybody looks at the key. All that can fail early does so before the answer begins.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from api import options
from api.answers import answer
from api.dependencies import Caller, Configured, Served
from api.entry import admitted, parts
from api.events import events
from api.following import Following
from api.forms import TranscriptionForm, TranslationForm, parse
from api.routers.models import known
from asr.transcript import Transcript

router = APIRouter(prefix="/v1/audio", tags=["audio"])

NO_BUFFER = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Or a proxy may keep events until there are enough of them."""


def _described(form: type[TranscriptionForm] | type[TranslationForm]) -> dict[str, Any]:
    """The form for the OpenAPI description, which FastAPI cannot see."""
    schema = form.model_json_schema()
    schema["properties"]["file"] = {"type": "string", "format": "binary"}
    schema["required"] = ["file", *schema["required"]]
    body = {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    return {"requestBody": body}


@router.post("/transcriptions", openapi_extra=_described(TranscriptionForm))
async def transcriptions(
    request: Request, settings: Configured, serving: Served, caller: Caller
) -> Response:
    async with admitted(request, settings, serving, caller) as entry:
        form = parse(TranscriptionForm, entry.upload.fields)
        known(form.model, settings)
        following = await entry.follow(options.transcription(form, serving, settings))
    logprobs = "logprobs" in form.include
    if form.stream:
        body = events(following, logprobs=logprobs)
        return StreamingResponse(body, media_type="text/event-stream", headers=NO_BUFFER)
    heard = await parts(request, following)
    return answer(
        form.response_format,
        _transcript(following),
        tokens=[token for part in heard for token in part.tokens] if logprobs else None,
        granularities=form.timestamp_granularities,
    )


@router.post("/translations", openapi_extra=_described(TranslationForm))
async def translations(
    request: Request, settings: Configured, serving: Served, caller: Caller
) -> Response:
    async with admitted(request, settings, serving, caller) as entry:
        form = parse(TranslationForm, entry.upload.fields)
        known(form.model, settings)
        following = await entry.follow(options.translation(form, serving))
    await parts(request, following)
    return answer(form.response_format, _transcript(following))


def _transcript(following: Following) -> Transcript:
    outcome = following.outcome
    assert outcome is not None and outcome.transcript is not None  # a failure was raised before
    return outcome.transcript
