"""The form of `POST /v1/jobs`, as a record that is stored with the job.

Knows fields and limits; does not know HTTP or rows.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from forescribe.asr.decode.options import Options

from ..access import addresses
from ..errors import ApiError
from ..settings import Settings
from ..speech import form_options
from ..speech.forms import TranscriptionForm
from ..speech.serving import Serving
from .webhooks import check_secret

SHOWN = (
    "model",
    "language",
    "prompt",
    "keywords",
    "temperature",
    "task",
    "diarize",
    "num_speakers",
)
"""Fields of the request that the job's JSON repeats."""


MAX_URL, MAX_SECRET, MAX_UPLOAD_ID = 2048, 512, 64
"""Characters of what is stored in a job's row."""


class JobForm(TranscriptionForm):
    """`POST /v1/jobs`, without the file.

    Results are available in any format, so `response_format` has no effect on them: words are always
    timed, and `diarized_json` means `diarize`.
    """

    model: str = ""  # the loaded one
    task: Literal["transcribe", "translate"] = "transcribe"
    diarize: bool = False
    num_speakers: int | None = Field(None, ge=1, le=100)
    webhook_url: str | None = Field(None, max_length=MAX_URL)
    webhook_secret: str | None = Field(None, max_length=MAX_SECRET)
    upload_id: str | None = Field(None, max_length=MAX_UPLOAD_ID)

    @property
    def speakers(self) -> bool:
        """Whether speakers are requested."""
        return self.diarize or self.diarized


def check(form: JobForm, serving: Serving, settings: Settings) -> JobForm:
    """The form, with the defaults that settings may change later written out. Raises ApiError for what
    cannot be served."""
    if form.stream:
        raise _invalid("stream", "a job's events are at /v1/jobs/{id}/events")
    if form.include:
        raise _invalid("include", "a job keeps no logprobs")
    if form.num_speakers is not None and not form.speakers:
        raise _invalid("num_speakers", "needs diarize")
    if form.webhook_url is not None:
        _check_callback(form.webhook_url, form, settings)
    elif form.webhook_secret is not None:
        raise _invalid("webhook_secret", "needs webhook_url")
    options = transcription(form, serving, settings)
    if form.task == "translate" and not serving.multilingual:
        raise _invalid("task", "an English-only model cannot translate")
    resolved = {
        "model": form.model or settings.model_name,
        "language": options.language or "auto",
        "languages": None,
        "diarize": form.speakers,
        "webhook_secret": form.webhook_secret or settings.webhook_secret,
    }
    return form.model_copy(update=resolved)


def transcription(form: JobForm, serving: Serving, settings: Settings) -> Options:
    """The transcriber's options for a job. Raises ApiError."""
    as_transcription = form.model_copy(
        update={
            "response_format": "diarized_json",  # implies word times, and allows known speakers
            "timestamp_granularities": None,
        }
    )
    options = form_options.transcription(as_transcription, serving, settings)
    return Options(
        language=options.language,
        task=form.task,
        initial_prompt=options.initial_prompt,
        hint=options.hint,
        windows=options.windows,
        words=True,
        guards=options.guards,
    )


def shown(form: JobForm) -> dict[str, Any]:
    """The part of the form that the job's JSON repeats, without empty fields."""
    values = {name: getattr(form, name) for name in SHOWN}
    return {name: value for name, value in values.items() if value not in (None, "", ())}


def _check_callback(url: str, form: JobForm, settings: Settings) -> None:
    try:
        addresses.check_url(url, addresses.networks(settings.webhook_networks))
    except addresses.Refused as error:
        raise _invalid("webhook_url", str(error)) from error
    secret = form.webhook_secret or settings.webhook_secret
    if secret is None:
        raise _invalid("webhook_secret", "a callback is signed: give whsec_ followed by base64")
    try:
        check_secret(secret)
    except ValueError as error:
        raise _invalid("webhook_secret", str(error)) from error


def _invalid(param: str, reason: str) -> ApiError:
    return ApiError("invalid_value", f"{param}: {reason}", param=param)
