"""A job's request: the fields of a transcription and a job's own, as a record that outlives the process."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from forescribe.asr.decode.options import Options

from ..access import outbound
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
"""Of a request, what the job's object tells again."""


class JobForm(TranscriptionForm):
    """`POST /v1/jobs`, without the file. Results come in any format, so the format is not asked for
    here: words are always timed, and `diarized_json` means `diarize`."""

    model: str = ""  # the loaded one
    task: Literal["transcribe", "translate"] = "transcribe"
    diarize: bool = False
    num_speakers: int | None = Field(None, ge=1, le=100)
    webhook_url: str | None = None
    webhook_secret: str | None = None
    upload_id: str | None = None

    @property
    def speakers(self) -> bool:
        """Whether they are to be told apart."""
        return self.diarize or self.diarized


def check(form: JobForm, serving: Serving, settings: Settings) -> JobForm:
    """The form with all that a setting may change later written out. Raises ApiError for what cannot
    be served."""
    if form.stream:
        raise _no("stream", "a job's events are at /v1/jobs/{id}/events")
    if form.include:
        raise _no("include", "a job keeps no logprobs")
    if form.num_speakers is not None and not form.speakers:
        raise _no("num_speakers", "needs diarize")
    if form.webhook_url is not None:
        _check_hook(form, settings)
    elif form.webhook_secret is not None:
        raise _no("webhook_secret", "needs webhook_url")
    chosen = transcription(form, serving, settings)
    if form.task == "translate" and not serving.transcriber.whisper.tokens.multilingual:
        raise _no("task", "an English-only model cannot translate")
    told = {
        "model": form.model or settings.model_name,
        "language": chosen.language or "auto",
        "languages": None,
        "diarize": form.speakers,
        "webhook_secret": form.webhook_secret or settings.webhook_secret,
    }
    return form.model_copy(update=told)


def transcription(form: JobForm, serving: Serving, settings: Settings) -> Options:
    """What the transcriber is told. Raises ApiError."""
    plain = form.model_copy(
        update={
            "response_format": "diarized_json",  # times words, and takes known speakers
            "timestamp_granularities": None,
        }
    )
    made = form_options.transcription(plain, serving, settings)
    return Options(
        language=made.language,
        task=form.task,
        initial_prompt=made.initial_prompt,
        windows=made.windows,
        words=True,
        guards=made.guards,
    )


def shown(form: JobForm) -> dict[str, Any]:
    """What the job's object tells of it; what was not asked for is left out."""
    told = {name: getattr(form, name) for name in SHOWN}
    return {name: value for name, value in told.items() if value not in (None, "", ())}


def _check_hook(form: JobForm, settings: Settings) -> None:
    assert form.webhook_url is not None
    try:
        outbound.check_url(form.webhook_url, outbound.networks(settings.webhook_networks))
    except outbound.Refused as error:
        raise _no("webhook_url", str(error)) from error
    secret = form.webhook_secret or settings.webhook_secret
    if secret is None:
        raise _no("webhook_secret", "a callback is signed: give whsec_ with base64 behind it")
    try:
        check_secret(secret)
    except ValueError as error:
        raise _no("webhook_secret", str(error)) from error


def _no(param: str, reason: str) -> ApiError:
    return ApiError("invalid_value", f"{param}: {reason}", param=param)
