"""The body of a line, as a checked request: what to transcribe, how, and the format of the answer.

    {"model": "whisper-1", "file": "file-...", "response_format": "srt"}

The fields are those of the endpoint's form, as JSON. Does not know rows or files' contents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import ApiError
from ..jobs.job_form import JobForm, check
from ..routers.models import check_model
from ..settings import Settings
from ..speech import form_options
from ..speech.forms import TranscriptionForm, TranslationForm
from ..speech.serving import Serving
from .batch_records import Endpoint

AUDIO = ("file", "file_url")


@dataclass(frozen=True)
class LineRequest:
    """A line's form, and where its audio is: the id of a file, or a URL."""

    form: TranscriptionForm | TranslationForm
    file: str | None
    url: str | None

    @property
    def granularities(self) -> tuple[str, ...] | None:
        return getattr(self.form, "timestamp_granularities", None)


def parse(endpoint: Endpoint, body: Mapping[str, Any]) -> LineRequest:
    """Check the fields alone. Raises ApiError `invalid_value`, `missing_file`."""
    fields = {k: v for k, v in body.items() if k not in AUDIO and v is not None}
    kind = TranscriptionForm if endpoint.endswith("transcriptions") else TranslationForm
    return LineRequest(_form(kind, fields), *_audio(body))


def job_form(request: LineRequest, serving: Serving, settings: Settings) -> JobForm:
    """The form of the line's job. Raises ApiError for what this server cannot do."""
    form = request.form
    check_model(form.model, settings)
    if isinstance(form, TranslationForm):
        form_options.translation(form, serving)
        return check(JobForm(**form.model_dump(), task="translate"), serving, settings)
    form_options.transcription(form, serving, settings)
    return check(JobForm(**form.model_dump()), serving, settings)


def _form(
    kind: type[TranscriptionForm] | type[TranslationForm], fields: dict[str, Any]
) -> TranscriptionForm | TranslationForm:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        param = str(first["loc"][0])[:100]
        reasons = {"missing": "is missing", "extra_forbidden": _unknown(kind)}
        reason = reasons.get(first["type"], first["msg"])
        raise ApiError("invalid_value", f"{param}: {reason}", param=param) from error


def _unknown(kind: type[BaseModel]) -> str:
    return f"unknown field; known: {', '.join((*AUDIO, *kind.model_fields))}"


def _audio(body: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The id of a file or a URL; a URL may be given as `file` too."""
    given = {name: body[name] for name in AUDIO if body.get(name) is not None}
    if len(given) != 1:
        text = "give `file`, the id of a file, or `file_url`"
        raise ApiError("missing_file", text, param="file")
    ((name, value),) = given.items()
    if not isinstance(value, str):
        raise ApiError("invalid_value", f"{name}: not a string", param=name)
    if name == "file" and not value.startswith(("https://", "http://")):
        return value, None
    return None, value
