"""`/v1/audio/transcriptions` and `/v1/audio/translations`: OpenAI's contract.

The form is read by hand: a handler with an upload parameter would have the whole body on disk before
anybody looks at the key. All that can fail early does so before the answer begins.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from forescribe.asr.decode.options import Options
from forescribe.asr.formats.transcript import Transcript

from ..dependencies import Caller, Configured, Served
from ..speech import form_options
from ..speech.answers import answer
from ..speech.entry import Entry, admitted, attended, parts
from ..speech.events import EventStream, events
from ..speech.following import Following
from ..speech.forms import TranscriptionForm, TranslationForm, parse
from .models import known

router = APIRouter(prefix="/v1/audio", tags=["audio"])


def _described(form: type[TranscriptionForm] | type[TranslationForm]) -> dict[str, Any]:
    """The form for the OpenAPI description, which FastAPI cannot see."""
    schema = form.model_json_schema()
    schema["properties"]["file"] = {"type": "string", "format": "binary"}
    schema["required"] = ["file", *schema["required"]]
    body = {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    answers: dict[str, dict[str, str]] = {
        kind: {} for kind in ("application/json", "text/plain", "text/event-stream")
    }
    return {"requestBody": body, "responses": {"200": {"content": answers}}}


@router.post("/transcriptions", openapi_extra=_described(TranscriptionForm))
async def transcriptions(
    request: Request, settings: Configured, serving: Served, caller: Caller
) -> Response:
    async with admitted(request, settings, serving, caller) as entry:
        form = parse(TranscriptionForm, entry.upload.fields)
        known(form.model, settings)
        chosen = form_options.transcription(form, serving, settings)
        if form.diarized:
            return await _diarized(request, entry, form, chosen)
        following = await entry.follow(chosen)
    logprobs = "logprobs" in form.include
    if form.stream:
        return EventStream(events(following, logprobs=logprobs), following.cancel)
    heard = await parts(request, following)
    return answer(
        form.response_format,
        _transcript(following),
        tokens=[token for part in heard for token in part.tokens] if logprobs else None,
        granularities=form.timestamp_granularities,
    )


async def _diarized(
    request: Request, entry: Entry, form: TranscriptionForm, chosen: Options
) -> Response:
    """`diarized_json`: the recording is decoded once, and heard by the diarizer as well. Its place is
    given back when both are done."""
    speakers = entry.serving.speakers
    names = await speakers.known(form.known_speaker_names, form.known_speaker_references)
    hearing = await speakers.hear(names)

    with ExitStack() as over:
        over.callback(entry.place.leave)
        over.callback(hearing.close)
        following = await entry.follow(chosen, hearing.hear)
        over.callback(following.cancel)
        if form.stream:
            body = events(following, logprobs=False, told=hearing.told)
            return EventStream(body, over.pop_all().close)
        await parts(request, following)
        transcript = await attended(request, hearing.told(_transcript(following)))
    return answer(form.response_format, transcript)


@router.post("/translations", openapi_extra=_described(TranslationForm))
async def translations(
    request: Request, settings: Configured, serving: Served, caller: Caller
) -> Response:
    async with admitted(request, settings, serving, caller) as entry:
        form = parse(TranslationForm, entry.upload.fields)
        known(form.model, settings)
        following = await entry.follow(form_options.translation(form, serving))
    await parts(request, following)
    return answer(form.response_format, _transcript(following))


def _transcript(following: Following) -> Transcript:
    outcome = following.outcome
    assert outcome is not None and outcome.transcript is not None  # a failure was raised before
    return outcome.transcript
