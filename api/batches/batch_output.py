"""The output of a batch: one line of JSON for each request, in OpenAI's format.

    {"id": "batch_req_...", "custom_id": "call-1", "error": null,
     "response": {"status_code": 200, "request_id": "req_...", "body": {"text": "..."}}}

Requests that succeeded are in one file, the others in another. A request that was refused has the answer
that its route would have given; one that was never finished has only an `error`. Does not know rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from forescribe.asr.formats.transcript import Transcript

from ..errors import STATUS, ApiError
from ..speech import answers
from ..speech.diarization import letter, relabelled
from ..speech.forms import TranscriptionForm
from .batch_records import LineError, LineRow
from .line_form import LineRequest

UNDONE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "expired": (
            "batch_expired",
            "This request could not be executed before the completion window expired.",
        ),
        "cancelled": (
            "batch_cancelled",
            "This request was not finished before the batch was cancelled.",
        ),
    }
)
"""Code and message of lines that were never finished, by state."""


def succeeded(line: LineRow, custom_id: str, request: LineRequest, transcript: Transcript) -> bytes:
    """The line of the output file."""
    form = request.form
    if isinstance(form, TranscriptionForm) and form.diarized:
        transcript = relabelled(transcript, form.known_speaker_names, letter)
    body = body_of(transcript, form.response_format, request.granularities)
    return _line(line, custom_id, _response(line, 200, body), None)


def failed(line: LineRow, custom_id: str) -> bytes:
    """The line of the error file."""
    if line.state in UNDONE:
        code, message = UNDONE[line.state]
        return _line(line, custom_id, None, {"code": code, "message": message})
    told = line.error or LineError("internal_error", "the server failed")
    code = told.code if told.code in STATUS else "internal_error"
    error = ApiError(code, told.message, param=told.param)
    return _line(line, custom_id, _response(line, error.status, error.body()), None)


def body_of(transcript: Transcript, form: str, granularities: Sequence[str] | None) -> Any:
    """What the route would have answered: an object, or a string for the formats that are plain text."""
    if form == "text":
        return f"{transcript.text}\n"
    if form in answers.FILES:
        render, _ = answers.FILES[form]
        return render(transcript)
    if form == "diarized_json":
        return answers.diarized(transcript)
    if form == "json":
        return answers.short(transcript, None)
    return answers.verbose(transcript, set(granularities or ("segment",)))


def _response(line: LineRow, status: int, body: Any) -> dict[str, Any]:
    return {
        "status_code": status,
        "request_id": f"req_{line.job.removeprefix('job_')}",
        "body": body,
    }


def _line(
    line: LineRow, custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None
) -> bytes:
    value = {"id": line.request, "custom_id": custom_id, "response": response, "error": error}
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n"
