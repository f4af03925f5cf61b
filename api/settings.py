"""Settings of the service: read once from the environment and a file, checked together, then frozen.

Command-line options take precedence over the environment, the environment over the file. An unknown name is
an error, and so are settings that would lose something together. Whether other processes keep their blobs
elsewhere is checked against the database (`api.jobs.service`). Import is light.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
import tomllib
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Field,
    IPvAnyNetwork,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from forescribe.asr.errors import UsageError

from .access.keys import Count, Rights, Seconds
from .http.origins import checked_hosts, checked_origins
from .wording import message, nearest

log = logging.getLogger(__name__)

PREFIX = "FORESCRIBE_"
OTHER_PREFIXES = (
    "FORESCRIBE_TEST_",
    "FORESCRIBE_COMPILE",
    "FORESCRIBE_CACHE",
    "FORESCRIBE_VOICES",
    "FORESCRIBE_SPEAKERS",
    "FORESCRIBE_COMMUNITY_1",
    "FORESCRIBE_TRUST_CHECKPOINTS",
)
"""Prefixes of variables that the test suite and `diarize` read, which are not settings."""

OPENAI_NAMES = (
    "whisper-1",
    "gpt-transcribe",
    "gpt-live-transcribe",
    "gpt-realtime-whisper",
    "gpt-4o-transcribe",
    "gpt-4o-mini-transcribe",
    "gpt-4o-mini-transcribe-2025-12-15",
    "gpt-4o-transcribe-diarize",
)
"""Names that unmodified clients send; they all mean the loaded model."""

NO_DIARIZER = "none"

_FILE: ContextVar[Path | None] = ContextVar("settings_file", default=None)
"""What `load` reads at present."""

Hosts = Annotated[tuple[str, ...], AfterValidator(checked_hosts)]
Origins = Annotated[tuple[str, ...], AfterValidator(checked_origins)]


class Settings(BaseSettings):
    """Every field is also an environment variable, in capitals after FORESCRIBE_."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    # Address
    host: str = "127.0.0.1"  # address to listen on
    port: int = Field(8000, ge=0, le=65535)  # 0 selects a free port
    ssl_certfile: Path | None = None  # certificate for https, in PEM
    ssl_keyfile: Path | None = None  # its key; unset: in the same file
    wyoming: str | None = None  # [address:]port for Home Assistant; no keys: trusted networks only
    open_to_all: bool = False  # allow other machines without API keys
    allowed_hosts: Hosts = ()  # further host names of this server: `asr.lan`, `*.lan`, `*`
    allowed_origins: Origins = ()  # origins whose pages may call it: `https://app.lan`

    # Models, as for `forescribe transcribe`
    model: str | None = None  # preset, hub id or folder of the target
    draft: str | None = None  # the same for the draft
    language: str | None = None  # for requests that name none; unset: detected
    device: str = "auto"  # `cpu`, `cuda`, `cuda:1`, `hpu`
    dtype: str = "auto"  # `float32`, `bfloat16`, `float16`
    quantize: str = "none"  # `int8`: decoders in 8-bit integers, on CPUs with the native engine
    draft_dtype: str = "auto"  # of drafts; changes no word
    engine: str = "auto"  # what computes the decoders: `native`, `lean`, `modules`
    batch_size: int = Field(8, ge=1, le=1024)  # slots: windows decoded at a time
    gamma: int | None = Field(None, ge=0, le=64)  # drafted tokens per round; unset: adaptive
    workers: Count = 1  # processes, one for each device
    share_device: bool = False  # let several workers use the same device
    local_files_only: bool = False  # do not download models
    text_model: str | None = None  # as for `forescribe generate`; unset: no text routes
    text_draft: str | None = None  # the same; `ngram`: copied; `none` disables drafts
    text_context: int | None = Field(None, ge=2)  # prompt and answer; unset: as memory allows
    diarizer: str = "auto"  # `none` disables speakers
    aliases: tuple[str, ...] = OPENAI_NAMES  # further names of the model

    # Access: name -> SHA-256 of the key, or its rights; see `forescribe key`
    api_keys: dict[str, Rights] = Field(default_factory=dict)

    # Limits
    max_upload_bytes: Count = 1 << 30  # of one upload; more is 413
    max_audio_s: Seconds = 4 * 3600.0  # decoded length of one upload; longer is 413
    max_requests: Count = 64  # requests at a time, once they have arrived; more are 503
    max_uploads: Count = 256  # bodies received at a time, pieces of uploads included; more are 503
    max_requests_per_key: Count = 16  # running or being received, of one key; more are 429
    max_streams: Count = 64  # live sessions at a time; more are 503
    max_queued_audio_s: Seconds = 12 * 3600.0  # of all requests, not yet decoded; more is 503
    timeout_s: Seconds = 3600.0  # for one request, after its upload
    announce_s: float = Field(3.0, ge=0)  # from SIGTERM (/ready: draining) to the first refusal
    drain_s: float = Field(30.0, ge=0)  # for requests in progress at the end
    idle_unload_s: Seconds | None = None  # without work until the model leaves memory; unset: never
    stall_s: Seconds = 1800.0  # longest round of a model; then the process ends with status 70

    # Jobs
    jobs: bool = True  # enable the job routes
    data_dir: Path | None = None  # unset: forescribe in XDG_DATA_HOME, or ~/.local/share
    database_url: str | None = Field(None, repr=False)  # unset: SQLite there; postgresql://...
    job_concurrency: Count = 4  # jobs at a time; their windows share the model's slots
    max_queued_jobs_s: Seconds = 500 * 3600.0  # audio of all unfinished jobs; more is 503
    max_jobs_per_key: Count = 1000  # unfinished jobs of one key; more are 429
    min_free_bytes: int = Field(512 << 20, ge=0)  # with less, new jobs are 507
    audio_retention_s: Seconds = 24 * 3600.0  # how long audio is kept after success
    result_retention_s: Seconds = 30 * 24 * 3600.0  # how long a job is kept after its end
    max_open_uploads_per_key: Count = 100  # uploads that are not a job yet, of a key or an address
    webhook_secret: str | None = Field(None, repr=False)  # whsec_..., for jobs without their own
    webhook_networks: tuple[IPvAnyNetwork, ...] = ()  # private networks that webhooks may call

    # Several machines
    blobs_url: str | None = None  # audio and results in object storage: s3://, gs:// or az://
    blob_cache_bytes: Count = 4 << 30  # local copies of recordings; at least max_upload_bytes
    front_end: bool = False  # load no model: `forescribe worker` does the jobs

    @field_validator("language")
    @classmethod
    def _language(cls, names: str | None) -> str | None:
        from forescribe.asr.model.languages import read_languages

        spoken = read_languages(names)
        for note in spoken.notes:
            log.warning("%s", note)
        return spoken.text

    @field_validator("wyoming")
    @classmethod
    def _wyoming(cls, text: str | None) -> str | None:
        if text is not None:
            address_of(text)
        return text

    @model_validator(mode="after")
    def _check_access(self) -> Self:
        if "*" in self.allowed_origins and not self.api_keys:
            raise ValueError(
                "allowed_origins `*` lets every web page use this server: list the origins, "
                "or set api_keys"
            )
        if not (self.api_keys or self.open_to_all or loopback(self.host)):
            raise ValueError(
                f"host {self.host} lets other machines in, and there are no api_keys: make one "
                "with `forescribe key NAME`, or set open_to_all"
            )
        if self.idle_unload_s and self.text_model is not None:
            raise ValueError(
                "idle_unload_s frees the speech model alone, and a text model must not run while another is "
                "loaded: remove text_model, or serve texts in a process of their own"
            )
        self._check_certificate()
        self._check_machines()
        return self

    def _check_certificate(self) -> None:
        if self.ssl_certfile is None:
            if self.ssl_keyfile is not None:
                raise ValueError("ssl_keyfile needs ssl_certfile")
            return
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                self.ssl_certfile, self.ssl_keyfile, password=_no_password
            )
        except (OSError, ValueError) as error:
            raise ValueError(
                f"ssl_certfile {self.ssl_certfile}, ssl_keyfile {self.ssl_keyfile}: {error}"
            ) from error

    def _check_machines(self) -> None:
        for name in ("wyoming", "text_model", "idle_unload_s"):
            if self.front_end and getattr(self, name) is not None:
                raise ValueError(
                    f"front_end loads no model, and {name} is for one: remove one of them"
                )
        if self.blobs_url is None and not self.front_end:
            return
        if not self.jobs or self.database_url is None or self.database_url.startswith("sqlite"):
            raise ValueError(
                "blobs_url and front_end are for jobs in a database that several machines can reach, and "
                "SQLite is a file of this one: set jobs = true and "
                "database_url = postgresql://user:password@host/name"
            )
        if self.blobs_url is None:
            return
        if self.blobs_url.startswith("memory:"):
            raise ValueError(
                "blobs_url: memory:// ends with the process; use s3://, gs:// or az://"
            )
        if self.blob_cache_bytes < self.max_upload_bytes:
            raise ValueError(
                f"blob_cache_bytes {self.blob_cache_bytes} is less than max_upload_bytes "
                f"{self.max_upload_bytes}: a recording has to fit in"
            )

    def load_arguments(self) -> dict[str, Any]:
        """What `Transcriber.load` and `TextGenerator.load` take alike."""
        names = ("device", "dtype", "draft_dtype", "quantize", "engine", "gamma")
        return {
            **{name: getattr(self, name) for name in names},
            "batch": self.batch_size,
            "network": not self.local_files_only,
        }

    @cached_property
    def model_name(self) -> str:
        """The name of the model for clients."""
        from forescribe.asr.model.presets import DEFAULT

        return public_name(self.model or DEFAULT)

    @property
    def text_name(self) -> str | None:
        """The name of the text model for clients, if there is one."""
        return None if self.text_model is None else public_name(self.text_model)

    @property
    def data_folder(self) -> Path:
        """The folder of jobs."""
        if self.data_dir is not None:
            return self.data_dir
        home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
        return Path(home) / "forescribe"

    def made_data_folder(self) -> Path:
        """The folder of jobs, which is made if it is missing. Raises UsageError."""
        folder = self.data_folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UsageError(f"data_dir {folder}: {error.strerror}; set another") from error
        return folder

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        *others: PydanticBaseSettingsSource,
        **named: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, _FILE.get())


def load(file: str | Path | None = None, **given: Any) -> Settings:
    """Read the settings. `given` takes precedence over everything; None there means not given. Raises
    UsageError with one line that names the wrong setting."""
    _refuse_unknown(os.environ)
    if file is not None and not Path(file).is_file():  # pydantic-settings would ignore it
        raise UsageError(f"{file}: no such settings file")
    before = _FILE.set(None if file is None else Path(file))
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise UsageError("; ".join(_line(item) for item in error.errors())) from error
    except (SettingsError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"settings cannot be read: {error}") from error
    finally:
        _FILE.reset(before)


def public_name(model: str) -> str:
    """The name of a model for clients: of a folder only its own name, not its path."""
    path = Path(model).expanduser()
    local = model.startswith(("/", "./", "../", "~")) or path.is_dir()
    return path.resolve().name or model if local else model


def address_of(text: str) -> tuple[str, int]:
    """The host and the port of `[address:]port`; without an address, this machine's own. Raises
    ValueError."""
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise ValueError(
            f"{text!r} is no port, as 10300, and no address with one, as 192.168.1.5:10300"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def loopback(host: str) -> bool:
    """Whether the host is this machine for itself alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _no_password() -> str:
    """For an encrypted key; without it OpenSSL would ask on the terminal."""
    raise ValueError("its key is encrypted: give one without a password")


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in environment:
        if name.startswith(PREFIX) and name not in known and not name.startswith(OTHER_PREFIXES):
            raise UsageError(_unknown(name, known))


def _unknown(name: str, known: Iterable[str]) -> str:
    hint = nearest(name, known) or "; docs/reference/settings.md lists them"
    return f"{name} is not a setting{hint}"


def _line(error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return _unknown(place, Settings.model_fields)
    return f"{place}: {message(error)}" if place else message(error)
