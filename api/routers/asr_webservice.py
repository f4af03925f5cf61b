"""`POST /asr` and `/detect-language`: the routes of whisper-asr-webservice, for Bazarr and its other clients.

    curl -F audio_file=@talk.mp3 'localhost:8000/asr?output=srt&language=en'

Options are in the query, as there, or fields of the form; the header `Warning` names those without effect
here. With `encode=false` the audio is raw: 16 bits, 16 kHz, mono. Errors are `{"detail": ...}`.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import wave
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, BinaryIO, Literal, cast
from urllib.parse import quote

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, PlainTextResponse, Response

from forescribe.asr.decode.options import Options
from forescribe.asr.errors import temporary_errors
from forescribe.asr.formats import files
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE
from forescribe.asr.model.languages import LANGUAGES
from forescribe.asr.model.tokens import Task
from forescribe.diarize.diarizer import Bounds

from ..dependencies import (
    AdmittedUpload,
    ClientDep,
    ServingDep,
    SettingsDep,
    admitted,
    transcribed,
    while_connected,
)
from ..errors import ApiError
from ..http.openapi import form_body
from ..speech import forms
from ..speech.decoding import Decoding

FIELD = "audio_file"
MAX_RAW = (1 << 32) - 4096  # bytes: what the header of a wav file can say
router = APIRouter(tags=["endpoints"])


class AsrForm(BaseModel):
    """The webservice's options and defaults; but silence is left out, unless `vad_filter` is false. Of all
    this a language is detected with `encode` alone."""

    encode: bool = True
    output: Literal["txt", "vtt", "srt", "tsv", "json"] = "txt"
    task: Task = "transcribe"
    language: str | None = None
    initial_prompt: str | None = None
    vad_filter: bool = True
    word_timestamps: bool = False
    diarize: bool = False
    min_speakers: int | None = Field(None, ge=1, le=100)
    max_speakers: int | None = Field(None, ge=1, le=100)


OPENAPI: dict[str, Any] = {
    "parameters": [
        {"name": name, "in": "query", "schema": schema}
        for name, schema in AsrForm.model_json_schema()["properties"].items()
    ],
    **form_body(None, file=FIELD),
}


@router.post("/asr", openapi_extra=OPENAPI)
async def asr(
    request: Request, settings: SettingsDep, serving: ServingDep, client: ClientDep
) -> Response:
    async with admitted(request, settings, serving, client, FIELD) as received:
        form, upload, headers = await _asked(request, received)
        wanted = form.model_dump(include={"task", "language", "initial_prompt", "vad_filter"})
        options = forms.transcription(forms.TranscriptionForm(**wanted), serving, settings)
        options = replace(options, words=form.word_timestamps or form.diarize)
        bounds = Bounds(None, form.min_speakers, form.max_speakers) if form.diarize else None
        transcript, spoken = await transcribed(request, upload, options, bounds)
    name = f"{quote(upload.name or FIELD)}.{form.output}"
    headers["Content-Disposition"] = f'attachment; filename="{name}"'
    text = files.FORMATS[form.output].render(spoken or transcript)
    if form.output == "json":  # without what is for operators of this server
        whole = (spoken or transcript).to_dict()
        text = json.dumps({k: v for k, v in whole.items() if k not in ("settings", "stats")})
    return PlainTextResponse(text, headers=headers)


@router.post("/detect-language", openapi_extra=OPENAPI)
async def detect_language(
    request: Request, settings: SettingsDep, serving: ServingDep, client: ClientDep
) -> Response:
    """That of the first window in which somebody speaks."""
    async with admitted(request, settings, serving, client, FIELD) as received:
        _, upload, headers = await _asked(request, received)
        stream = await upload.follow(Options())
    try:
        code, confidence = await while_connected(request, _language(stream))
    finally:
        stream.cancel()
    found = {"detected_language": LANGUAGES.get(code, "unknown"), "language_code": code}
    return JSONResponse({**found, "confidence": confidence}, headers=headers)


async def _language(stream: Decoding) -> tuple[str, float]:
    """The code, and how probable it is; `und` where nobody speaks."""
    submission, part = stream.submission, True
    assert submission is not None
    while part:
        part = await stream.next() is not None
        if submission.language is not None:
            return submission.language, submission.language_probability or 1.0
    return "und", 0.0


async def _asked(
    request: Request, upload: AdmittedUpload
) -> tuple[AsrForm, AdmittedUpload, dict[str, str]]:
    """The options, the upload as its decoder reads it, and headers of the answer. Raises ApiError."""
    given = [*request.query_params.multi_items(), *upload.fields]
    known = [(name, value) for name, value in given if name in AsrForm.model_fields]
    unused = ", ".join(sorted({quote(n[:100]) for n, _ in given} - AsrForm.model_fields.keys()))
    warning = {"Warning": f'299 forescribe "these have no effect here: {unused}"'} if unused else {}
    form = forms.parse(AsrForm, known)
    if not form.encode:
        file = await asyncio.to_thread(_wav, upload.file)
        upload.held.callback(file.close)
        upload = replace(upload, file=file)
    return form, upload, {"Asr-Engine": "forescribe", **warning}


def _wav(raw: BinaryIO) -> BinaryIO:
    """Raw samples as a wav file, so that the decoder of uploads and its limits are for them too."""
    if not 0 < (size := raw.seek(0, os.SEEK_END)) <= MAX_RAW:
        code = "file_too_large" if size else "empty_file"
        raise ApiError(code, f"{FIELD} has {size} bytes; raw audio has up to {MAX_RAW}")
    raw.seek(0)
    with temporary_errors(), ExitStack() as failing:
        file = cast(BinaryIO, tempfile.TemporaryFile(buffering=0))
        failing.callback(file.close)
        with wave.open(file, "wb") as wav:
            wav.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
            while block := raw.read(1 << 20):
                wav.writeframesraw(block)
        failing.pop_all()
    return file
