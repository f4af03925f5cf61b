"""Settings of the service: read once, from the environment and a file, and frozen.

    FORESCRIBE_MODEL=large FORESCRIBE_MAX_AUDIO_S=7200 forescribe serve --settings service.toml

An option on the command line wins over the environment, the environment over the file. A name that
nobody knows is an error, not ignored.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from forescribe.asr.errors import UsageError

from .access.keys import Rights
from .http.hosts import checked_hosts, checked_origins

PREFIX = "FORESCRIBE_"
OTHERS = (
    "FORESCRIBE_TEST_",
    "FORESCRIBE_SPEAKERS",
    "FORESCRIBE_COMMUNITY_1",
    "FORESCRIBE_TRUST_CHECKPOINTS",
)
"""Beginnings of variables that the test suite and `diarize` read: no settings of the service."""

OPENAI_NAMES = (
    "whisper-1",
    "gpt-transcribe",
    "gpt-4o-transcribe",
    "gpt-4o-mini-transcribe",
    "gpt-4o-mini-transcribe-2025-12-15",
    "gpt-4o-transcribe-diarize",
)
"""Names that unmodified clients send; here they all mean the model that is loaded."""

NONE = "none"
"""A diarizer that there is not."""

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Rate = Annotated[float, Field(gt=0)]


class Settings(BaseSettings):
    """Every field is also an environment variable, in capitals behind FORESCRIBE_."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    # Where it listens.
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    open_to_all: bool = False  # without keys, others than this machine are let in only with this
    allowed_hosts: tuple[str, ...] = ()  # further names of this server: `asr.lan`, `*.lan`, `*`
    allowed_origins: tuple[str, ...] = ()  # whose pages may call it: `https://app.lan`

    # What it loads, as `forescribe transcribe` does.
    model: str | None = None
    draft: str | None = None
    language: str | None = None  # where a request names none; None detects it
    device: str = "auto"
    dtype: str = "auto"
    batch_size: int = Field(8, ge=1, le=1024)
    gamma: int | None = Field(None, ge=0, le=64)
    workers: Count = 1  # processes, one for each device; see forescribe.api.process.workers
    share_device: bool = False  # let several workers have the same one
    local_files_only: bool = False
    text_model: str | None = None  # as for `forescribe generate`; None writes no text
    text_draft: str | None = None  # likewise; `ngram` copies from the text, `none` has no drafts
    diarizer: str = "auto"  # loaded when speakers are first asked for; `none` has no speakers
    aliases: tuple[str, ...] = OPENAI_NAMES  # further names of the model

    # Who may use it: name -> SHA-256 of the key, or its rights; see `forescribe key`.
    api_keys: dict[str, Rights] = Field(default_factory=dict)

    # Limits.
    max_upload_bytes: Count = 1 << 30
    max_audio_s: Seconds = 4 * 3600.0  # decoded, of one upload
    max_requests: Count = 64  # under way at a time, once their bodies are here
    max_uploads: Count = 256  # bodies coming in at a time, pieces of resumable ones too
    upload_idle_s: Seconds = 30.0  # without a byte of a body; longer is 408
    min_upload_rate: Rate = 1024.0  # bytes per second of a body, on average; slower is 408
    max_requests_per_key: Count = 16
    max_queued_audio_s: Seconds = 12 * 3600.0
    timeout_s: Seconds = 3600.0  # for one request, once its upload is here
    decode_timeout_s: Seconds = 600.0  # for the decoder of one upload
    decode_memory_bytes: Count = 1 << 30  # for the same, beyond what it has loaded
    announce_s: float = Field(
        3.0, ge=0
    )  # from SIGTERM to the first refusal; /ready says so at once
    drain_s: float = Field(30.0, ge=0)  # for what is under way, when told to stop
    stall_s: Seconds = 1800.0  # for one round of a model; longer is a hang, and the process ends
    readers: Count = 2  # uploads decoded at a time, and threads that cut them into windows

    # Jobs: where they are kept, how many, how long.
    jobs: bool = True
    data_dir: Path | None = None  # None: forescribe under XDG_DATA_HOME, or ~/.local/share
    database_url: str | None = Field(None, repr=False)  # None: SQLite there; postgresql://...
    job_concurrency: Count = 4  # under way at a time; their windows share the model's slots
    max_queued_jobs_s: Seconds = 500 * 3600.0  # of audio
    max_jobs_per_key: Count = 1000  # open ones
    min_free_bytes: int = Field(512 << 20, ge=0)  # with less on the disk nothing comes in
    audio_retention_s: Seconds = 24 * 3600.0  # from a job's success
    result_retention_s: Seconds = 30 * 24 * 3600.0  # from its end; then it is gone
    upload_retention_s: Seconds = 24 * 3600.0  # of an upload that nobody goes on with
    idempotency_retention_s: Seconds = 7 * 24 * 3600.0
    webhook_secret: str | None = Field(None, repr=False)  # whsec_..., where a job brings none
    webhook_networks: tuple[str, ...] = ()  # in the house, that callbacks may go to all the same

    @field_validator("webhook_networks")
    @classmethod
    def _networks(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        for text in texts:
            ipaddress.ip_network(text)
        return texts

    @field_validator("allowed_hosts")
    @classmethod
    def _hosts(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return checked_hosts(names)

    @field_validator("allowed_origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        return checked_origins(origins)

    @model_validator(mode="after")
    def _no_page_without_a_key(self) -> Self:
        if "*" in self.allowed_origins and not self.api_keys:
            raise ValueError(
                "allowed_origins `*` lets every page in the world use this server: list the origins, "
                "or set api_keys"
            )
        return self

    @model_validator(mode="after")
    def _not_open_by_accident(self) -> Self:
        if not (self.api_keys or self.open_to_all or loopback(self.host)):
            raise ValueError(
                f"host {self.host} lets other machines in, and there are no api_keys: make one "
                "with `forescribe key NAME`, or set open_to_all"
            )
        return self

    @property
    def model_name(self) -> str:
        """What clients call the model."""
        from forescribe.asr.model.presets import DEFAULT

        return public_name(self.model or DEFAULT)

    @property
    def text_name(self) -> str | None:
        """What clients call the text model, if there is one."""
        return None if self.text_model is None else public_name(self.text_model)

    @property
    def data_folder(self) -> Path:
        """Where jobs are kept."""
        if self.data_dir is not None:
            return self.data_dir
        home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
        return Path(home) / "forescribe"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load(file: str | Path | None = None, **given: Any) -> Settings:
    """The settings. `given` wins over all; None there means not given. Raises UsageError, in one
    line, that names the culprit."""
    _refuse_unknown(os.environ)
    kind = Settings if file is None else _with(Path(file))
    try:
        return kind(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise UsageError("; ".join(_line(found) for found in error.errors())) from error
    except (SettingsError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"settings cannot be read: {error}") from error


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in environment:
        if name.startswith(PREFIX) and name not in known and not name.startswith(OTHERS):
            raise UsageError(f"{name} is no setting; known: {', '.join(sorted(known))}")


def _with(file: Path) -> type[Settings]:
    """Settings that read this file too. pydantic-settings takes a missing file for an empty one."""
    if not file.is_file():
        raise UsageError(f"{file}: no such settings file")

    class FromFile(Settings):
        model_config = SettingsConfigDict(toml_file=file)

    return FromFile


def _line(error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"])
    message = error["msg"].removeprefix("Value error, ")
    return f"{place}: {message}" if place else message


def public_name(model: str) -> str:
    """Of a folder its own name: where it lies is nobody's business."""
    path = Path(model).expanduser()
    local = model.startswith(("/", "./", "../", "~")) or path.is_dir()
    return path.resolve().name or model if local else model


def loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
