"""`forescribe serve`, `forescribe worker` and `forescribe key`: the HTTP service.

Knows the options, and how a key and its rights are printed; everything else is a setting of `forescribe.api`.
Needs the extra `serve`, without which the other commands work.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from forescribe.asr.errors import UsageError, how_to_install

from .option_records import PERFORMANCE, SERVICE, arg, like, opt, takes
from .options import LoadOptions, flag


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """What `serve` and `worker` share. None leaves a setting to the environment or the file; the defaults
    that are shown are those of `api.settings.Settings`."""

    host: str | None = opt(SERVICE, "ADDRESS", "Address to bind.", shown="127.0.0.1")
    port: int | None = opt(SERVICE, "PORT", "Port to bind; a worker needs none.", shown="8000")
    data_dir: Path | None = opt(
        SERVICE,
        "FOLDER",
        "Folder of jobs, files and uploads; of a worker its own.",
        shown="forescribe in XDG_DATA_HOME",
    )
    settings: Path | None = opt(SERVICE, "FILE", "TOML file with further settings.")
    model: str | None = like(LoadOptions, "model")
    draft: str | None = like(LoadOptions, "draft")
    device: str | None = like(LoadOptions, "device", default=None)
    dtype: str | None = like(LoadOptions, "dtype", default=None)
    batch_size: int | None = like(LoadOptions, "batch_size", default=None)


@dataclass(frozen=True, kw_only=True)
class ServeOptions(ServiceOptions):
    """The parsed command line."""

    language: str | None = flag("language", "Language of requests that name none.")
    quantize: str | None = like(LoadOptions, "quantize")
    draft_dtype: str | None = like(LoadOptions, "draft_dtype", default=None)
    engine: str | None = like(LoadOptions, "engine", default=None)
    ssl_certfile: Path | None = opt(SERVICE, "FILE", "Certificate in PEM, for https and wss.")
    ssl_keyfile: Path | None = opt(SERVICE, "FILE", "Its key, if it is not in the same file.")
    wyoming: str | None = opt(
        SERVICE,
        "[ADDRESS:]PORT",
        "Speech to text for Home Assistant too (Wyoming), as at 10300; on 127.0.0.1 unless an address is "
        "given. The protocol has no keys: trusted networks only.",
    )
    workers: int | None = opt(PERFORMANCE, "N", "Processes, one per GPU, from GPU 0 on.", shown="1")
    idle_unload_s: float | None = opt(
        PERFORMANCE,
        "--idle-unload SECONDS",
        "Free the model's memory after so long without requests.",
        shown="never",
    )
    local_files_only: bool | None = like(LoadOptions, "local_files_only", default=None)


@takes(ServeOptions)
def serve(**values: Any) -> None:
    """Serve OpenAI's audio API over HTTP.

    Every setting is also an environment variable, FORESCRIBE_MAX_AUDIO_S for max_audio_s; see
    docs/serve.md.
    """
    options = ServeOptions(**values)
    try:
        from forescribe.api.settings import load
        from forescribe.api.workers import bound, run
    except ModuleNotFoundError as error:
        raise UsageError(f"serve needs {error.name}: {how_to_install('serve')}") from error

    given = asdict(options)
    settings = load(given.pop("settings"), **given)
    with bound(settings) as listening:
        address, port = listening.getsockname()[:2]
        host = f"[{address}]" if ":" in address else address
        scheme = "http" if settings.ssl_certfile is None else "https"
        typer.echo(f"forescribe: {scheme}://{host}:{port}", err=True)
        run(settings, listening)


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(ServiceOptions):
    """The parsed command line."""

    database_url: str | None = opt(
        SERVICE, "--database URL", "The services' database: postgresql://user:password@host/name."
    )
    blobs_url: str | None = opt(
        SERVICE,
        "--blobs URL",
        "Their object storage, such as s3://bucket/prefix; gs:// and az:// too.",
    )
    job_concurrency: int | None = opt(PERFORMANCE, "--concurrency N", "Jobs at a time.", shown="4")
    until_idle: float | None = opt(
        SERVICE, "SECONDS", "End when no job was open for so long.", shown="never"
    )


@takes(WorkerOptions)
def worker(**values: Any) -> None:
    """Take jobs from the queue of `forescribe serve`, on any machine; one worker for each accelerator.

    SIGTERM ends it: the work that it has goes back to the queue. Every setting is also an environment
    variable, FORESCRIBE_DATABASE_URL for --database; see docs/several-machines.md.
    """
    given = asdict(WorkerOptions(**values))
    try:
        from forescribe.api.settings import load
        from forescribe.api.workers import bound
    except ModuleNotFoundError as error:
        raise UsageError(f"worker needs {error.name}: {how_to_install('serve')}") from error

    idle_s = given.pop("until_idle")
    if idle_s is not None and not idle_s > 0:
        raise UsageError(f"--until-idle {idle_s:g}: give seconds above 0")
    listens = given["port"] is not None
    settings = load(given.pop("settings"), **given)
    with bound(settings) if listens else nullcontext() as listening:
        # After the port is bound: it takes seconds.
        from forescribe.api.server import run_worker, worker_settings

        settings = worker_settings(settings)
        if listening is not None:
            address, port = listening.getsockname()[:2]
            typer.echo(f"forescribe worker: http://{address}:{port}/ready", err=True)
        run_worker(settings, listening, idle_s)


Scope = StrEnum("Scope", "audio text jobs metrics")
"""What a key may be for, as in `api.access.keys`."""


@dataclass(frozen=True, kw_only=True)
class KeyOptions:
    """The parsed command line."""

    name: str = arg("NAME", "Name of the key's owner.")
    scope: list[Scope] | None = opt(SERVICE, "SCOPE", "audio, text, jobs or metrics; repeatable.")
    max_requests: int | None = opt(
        SERVICE, "N", "Requests in progress at a time.", shown="of the server", min=1
    )
    expires: datetime | None = opt(SERVICE, "DATE", "Last day of the key, as 2027-01-31.")


@takes(KeyOptions)
def key(**values: Any) -> None:
    """Make an API key for the service.

    The key is printed once; the settings file holds its hash and its rights.
    """
    from forescribe.api.access.keys import digest, new_key

    options = KeyOptions(**values)
    asked = {
        "scopes": options.scope,
        "expires": options.expires and options.expires.date(),
        "max_requests": options.max_requests,
    }
    rights = {name: right for name, right in asked.items() if right}
    value = new_key()
    typer.echo(value)
    typer.echo(_lines(options.name, digest(value), rights), err=True)


def _lines(name: str, hash: str, rights: dict[str, Any]) -> str:
    """The lines for the settings file."""
    shown = json.dumps(name)
    if not rights:
        return f'for the settings file, under [api_keys]: {shown} = "{hash}"'
    lines = [f"[api_keys.{shown}]", f'hash = "{hash}"']
    for right, value in rights.items():
        text = value.isoformat() if isinstance(value, date) else json.dumps(value)
        lines.append(f"{right} = {text}")
    return "for the settings file:\n" + "\n".join(lines)
