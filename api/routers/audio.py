"""`/v1/audio/transcriptions` and `/v1/audio/translations`: OpenAI's contract.

The form is parsed by hand: FastAPI would store the whole body of a handler with an upload parameter before
the key is checked. Everything that can be refused is refused before the answer begins.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from forescribe.asr.decode.options import Options
from forescribe.asr.formats.transcript_parts import Notice

from ..dependencies import (
    AdmittedUpload,
    ClientDep,
    ServingDep,
    SettingsDep,
    admitted,
    all_parts,
    while_connected,
)
from ..http.event_streams import EventStream, encoded
from ..http.openapi import form_body
from ..speech import forms
from ..speech.answers import answer, events
from ..speech.forms import TranscriptionForm, TranslationForm, check_model, parse

router = APIRouter(prefix="/v1/audio", tags=["audio"])


ANSWERS = ("application/json", "text/plain", "text/vtt", "text/event-stream")
"""The media types of answers, for the OpenAPI description."""


def _openapi(form: type[TranscriptionForm] | type[TranslationForm]) -> dict[str, Any]:
    return {**form_body(form), "responses": {"200": {"content": {kind: {} for kind in ANSWERS}}}}


@router.post("/transcriptions", openapi_extra=_openapi(TranscriptionForm))
async def transcriptions(
    request: Request, settings: SettingsDep, serving: ServingDep, client: ClientDep
) -> Response:
    async with admitted(request, settings, serving, client) as upload:
        fields, unused = forms.set_aside(upload.fields)
        form = parse(TranscriptionForm, fields)
        check_model(form.model, settings)
        options = forms.transcription(form, serving, settings)
        if form.diarized:
            return await _diarized(request, upload, form, options, unused)
        stream = await upload.follow(options)
        stream.notices = unused
    logprobs = "logprobs" in form.include
    if form.stream:
        return EventStream(encoded(events(stream, logprobs=logprobs)), stream.cancel)
    parts = await all_parts(request, stream)
    return answer(
        form.response_format,
        stream.transcript,
        tokens=[token for part in parts for token in part.tokens] if logprobs else None,
        granularities=forms.granularities(form),
    )


async def _diarized(
    request: Request,
    upload: AdmittedUpload,
    form: TranscriptionForm,
    options: Options,
    unused: tuple[Notice, ...],
) -> Response:
    """`diarized_json`: the samples go to the transcriber and to the diarizer. The reservation is released
    when both are done."""
    speakers, held = upload.serving.speakers, upload.held
    known = await speakers.enrol(form.known_speaker_names, form.known_speaker_references)
    diarization = await asyncio.to_thread(speakers.start, known)
    held.callback(diarization.close)
    stream = await upload.follow(options, diarization.add_samples)
    stream.notices = unused
    held.callback(stream.cancel)
    if form.stream:
        messages = events(stream, logprobs=False, assign=diarization.assign)
        return EventStream(encoded(messages), held.pop_all().close)
    await all_parts(request, stream)
    with upload.serving.tracing.span("diarize"):
        transcript = await while_connected(request, diarization.assign(stream.transcript))
    return answer(form.response_format, transcript)


@router.post("/translations", openapi_extra=_openapi(TranslationForm))
async def translations(
    request: Request, settings: SettingsDep, serving: ServingDep, client: ClientDep
) -> Response:
    async with admitted(request, settings, serving, client) as upload:
        fields, unused = forms.set_aside(upload.fields)
        form = parse(TranslationForm, fields)
        check_model(form.model, settings)
        stream = await upload.follow(forms.translation(form, serving))
        stream.notices = unused
    await all_parts(request, stream)
    granularities = forms.granularities(form)
    return answer(form.response_format, stream.transcript, granularities=granularities)
