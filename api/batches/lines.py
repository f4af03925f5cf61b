"""The bodies of batches and of their lines, as checked records, and the recording that a line names.

    {"input_file_id": "file-...", "endpoint": "/v1/audio/transcriptions", "completion_window": "24h"}
    {"model": "whisper-1", "file": "file-...", "response_format": "srt"}

    with audio.of(request, owner, check) as recording:
        ...  recording.label, recording.audio.path

The fields of a line are those of the endpoint's form, as JSON; an unknown field is an error: no option is
accepted and then ignored. Its recording is a file that the client has uploaded, or one that is fetched from a
URL. Fetching is off unless `audio_urls` is set. The address is checked when the connection is made, as for
callbacks; there are no redirects and no proxies, and bytes and time are limited. Does not know rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..access import addresses, outbound
from ..errors import ApiError
from ..files import ExpiresAfter, Files
from ..http.bodies import label, whole
from ..jobs.blobs import BlobDraft, BlobStore
from ..jobs.submissions import Audio, JobForm, check
from ..settings import Settings
from ..speech import forms
from ..speech.forms import FormT, TranscriptionForm, TranslationForm, check_model
from ..speech.serving import Serving
from .table import Endpoint

AUDIO = ("file", "file_url")

PAUSES_S: Sequence[float] = (1.0, 4.0)
"""Pauses between the attempts to fetch a recording from a server that does not answer well."""

MAX_LENGTH = 2**60
"""The largest Content-Length that is read as a number."""

Key = Annotated[str, Field(min_length=1, max_length=64)]
Value = Annotated[str, Field(max_length=512)]


class BatchForm(BaseModel):
    """OpenAI's request for a batch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_file_id: str
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Annotated[dict[Key, Value], Field(max_length=16)] | None = None
    output_expires_after: ExpiresAfter | None = None


def parse_batch(body: Mapping[str, Any]) -> BatchForm:
    """Check the fields. Raises ApiError `invalid_value` with the name of the field."""
    fields = {k: v for k, v in body.items() if v is not None}
    return _checked(BatchForm, fields, BatchForm.model_fields)


@dataclass(frozen=True)
class LineRequest:
    """A line's form, and where its audio is: the id of a file, or a URL."""

    form: TranscriptionForm | TranslationForm
    file: str | None
    url: str | None

    @property
    def granularities(self) -> tuple[str, ...] | None:
        return getattr(self.form, "timestamp_granularities", None)


def parse_line(endpoint: Endpoint, body: Mapping[str, Any]) -> LineRequest:
    """Check the fields alone. Raises ApiError `invalid_value`, `missing_file`."""
    fields = {k: v for k, v in body.items() if k not in AUDIO and v is not None}
    kind: type[TranscriptionForm] | type[TranslationForm]
    kind = TranscriptionForm if endpoint.endswith("transcriptions") else TranslationForm
    return LineRequest(_checked(kind, fields, (*AUDIO, *kind.model_fields)), *_audio(body))


def job_form(request: LineRequest, serving: Serving, settings: Settings) -> JobForm:
    """The form of the line's job. Raises ApiError for what this server cannot do."""
    form = request.form
    check_model(form.model, settings)
    if isinstance(form, TranslationForm):
        forms.translation(form, serving)
        return check(JobForm(**form.model_dump(), task="translate"), serving, settings)
    forms.transcription(form, serving, settings)
    return check(JobForm(**form.model_dump()), serving, settings)


class LineAudio:
    """Finds or fetches recordings. `check` is called often, and raises if the work is to end."""

    def __init__(
        self,
        settings: Settings,
        files: Files,
        resolve: outbound.Resolve = outbound.resolve_name,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self.settings, self.files, self.resolve = settings, files, resolve
        self.pauses_s = pauses_s

    @contextmanager
    def of(
        self, request: LineRequest, owner: str, check: Callable[[], None]
    ) -> Iterator[LineRecording]:
        """Raises ApiError: `file_not_found`, `invalid_value`, `file_too_large`, `audio_unreachable`."""
        if request.file is not None:
            try:
                file = self.files.get(request.file, owner)
                name = self.files.blob(request.file, owner)
            except ApiError as error:
                raise ApiError(error.code, error.message, param="file") from error
            yield LineRecording(KeptBlob(self.files.store.blobs, name), file.filename)
            return
        assert request.url is not None
        draft = self._fetched(request.url, check)
        try:
            yield LineRecording(
                draft, label(unquote(urlsplit(request.url).path.rsplit("/", 1)[-1]))
            )
        finally:
            draft.discard()

    def _fetched(self, url: str, check: Callable[[], None]) -> BlobDraft:
        networks = addresses.networks(self.settings.audio_url_networks)
        if not self.settings.audio_urls:
            raise _refused("this server fetches no audio; upload the file, and give its id")
        try:
            addresses.check_url(url, networks)
        except addresses.Refused as error:
            raise _refused(str(error)) from error
        pauses = iter(self.pauses_s)
        while True:
            try:
                return self._fetch(url, networks, check)
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                refused = isinstance(_root(error), addresses.Refused)
                pause_s = None if refused else next(pauses, None)
                if pause_s is None:
                    what = str(_root(error)) if refused else type(error).__name__
                    text = f"file_url: the recording cannot be fetched ({what})"
                    raise ApiError("audio_unreachable", text, param="file_url") from error
            end_s = time.monotonic() + pause_s
            while time.monotonic() < end_s:
                check()
                time.sleep(0.05)

    def _fetch(
        self, url: str, networks: Sequence[addresses.Network], check: Callable[[], None]
    ) -> BlobDraft:
        timeout_s, maximum = self.settings.audio_url_timeout_s, self.settings.max_upload_bytes
        draft = self.files.store.blobs.draft()
        try:
            with (
                outbound.client(
                    timeout_s=timeout_s, allowed=networks, resolve=self.resolve
                ) as http,
                http.stream("GET", url, headers={"accept-encoding": "identity"}) as reply,
            ):
                if reply.status_code >= 500 or reply.status_code == 429:
                    raise httpx.HTTPError(f"the server answered {reply.status_code}")
                if reply.status_code != 200:
                    text = f"file_url: the server answered {reply.status_code}"
                    raise ApiError("audio_unreachable", text, param="file_url")
                declared = reply.headers.get("content-length", "0")
                if (whole(declared, MAX_LENGTH) or 0) > maximum:
                    raise _too_large(maximum)
                for piece in reply.iter_raw():
                    check()
                    draft.write(piece)
                    if draft.size > maximum:
                        raise _too_large(maximum)
            return draft
        except BaseException:
            draft.discard()
            raise


@dataclass(frozen=True)
class LineRecording:
    """The audio, and the client's name for it."""

    audio: Audio
    label: str | None


@dataclass(frozen=True)
class KeptBlob:
    """A blob that exists: the content of a file."""

    blobs: BlobStore
    name: str

    @property
    def path(self) -> Path:
        return self.blobs.local(self.name)

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def flush(self) -> None:
        """It is on disk."""

    def commit(self) -> str:
        """Its name. Call it while `shared_lock` is held, so that it is not deleted afterwards. Raises
        ApiError `file_not_found` if it has been deleted."""
        try:
            self.blobs.local(self.name)
        except FileNotFoundError as error:
            raise ApiError("file_not_found", "the file has been deleted", param="file") from error
        return self.name


def _checked(kind: type[FormT], fields: dict[str, Any], known: Iterable[str]) -> FormT:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        param, reason = str(first["loc"][0])[:100], first["msg"]
        if len(first["loc"]) == 1:
            unknown = f"unknown field; known: {', '.join(known)}"
            reasons = {"missing": "is missing", "extra_forbidden": unknown}
            reason = reasons.get(first["type"], reason)
        raise ApiError("invalid_value", f"{param}: {reason}", param=param) from error


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


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _refused(reason: str) -> ApiError:
    return ApiError("invalid_value", f"file_url: {reason}", param="file_url")


def _too_large(maximum: int) -> ApiError:
    text = f"the recording is larger than {maximum} bytes"
    return ApiError("file_too_large", text, param="file_url")
