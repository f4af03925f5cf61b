"""`forescribe serve`: the HTTP service.

Knows the options; everything else is a setting of `forescribe.api`. Needs the extra `serve`,
without which the other commands work.

`forescribe worker`: does the jobs of services on other machines.

Knows the options; everything else is a setting of `forescribe.api`. Needs the extra `serve`.

`forescribe key`: make an API key for the service.

Knows how a key and its rights are printed; keys and their hashes are in `forescribe.api.access`.
"""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from forescribe.asr.errors import UsageError
from forescribe.asr.installing import how_to_install

from .option_records import DECODING, MODEL, PERFORMANCE, SERVICE, argument, option, takes


@dataclass(frozen=True)
class ServeOptions:
    """The parsed command line; None leaves a setting to the environment or the file."""

    host: Annotated[
        str | None,
        option(SERVICE, "--host", metavar="ADDRESS", help="Address to bind.  [default: 127.0.0.1]"),
    ] = None
    port: Annotated[
        int | None,
        option(SERVICE, "--port", metavar="PORT", help="Port to bind.  [default: 8000]"),
    ] = None
    model: Annotated[
        str | None,
        option(
            MODEL,
            "--model",
            "-m",
            metavar="MODEL",
            help="Preset, Hugging Face id or local folder.  [default: large]",
        ),
    ] = None
    draft: Annotated[
        str | None,
        option(
            MODEL,
            "--draft",
            metavar="MODEL",
            help="Draft model, named like --model.  [default: the model's own]",
        ),
    ] = None
    language: Annotated[
        str | None,
        option(
            DECODING,
            "--language",
            "-l",
            metavar="LANG",
            help="Language of requests that name none.  [default: auto]",
        ),
    ] = None
    device: Annotated[
        str | None,
        option(
            PERFORMANCE,
            "--device",
            metavar="DEVICE",
            help="auto, cuda, cuda:N, hpu, mps or cpu.  [default: auto]",
        ),
    ] = None
    dtype: Annotated[
        str | None,
        option(
            PERFORMANCE,
            "--dtype",
            metavar="TYPE",
            help="auto, float32, float16 or bfloat16.  [default: auto]",
        ),
    ] = None
    quantize: Annotated[
        str | None,
        option(
            PERFORMANCE,
            "--quantize",
            metavar="TYPE",
            help="none, or int8: models in 8-bit integers, on CPUs with the native engine; words may "
            "differ.  [default: none]",
        ),
    ] = None
    draft_dtype: Annotated[
        str | None,
        option(
            PERFORMANCE,
            "--draft-dtype",
            metavar="TYPE",
            help="Number format of drafts: auto, float32, float16, bfloat16 or int8.  [default: auto]",
        ),
    ] = None
    engine: Annotated[
        str | None,
        option(
            PERFORMANCE,
            "--engine",
            metavar="ENGINE",
            help="What computes the decoders: native, lean, modules or auto.  [default: auto]",
        ),
    ] = None
    batch_size: Annotated[
        int | None,
        option(
            PERFORMANCE,
            "--batch-size",
            metavar="N",
            help="Windows decoded together.  [default: 8]",
        ),
    ] = None
    workers: Annotated[
        int | None,
        option(
            PERFORMANCE,
            "--workers",
            metavar="N",
            help="Processes, one per GPU, starting with GPU 0.  [default: 1]",
        ),
    ] = None
    local_files_only: Annotated[
        bool | None,
        option(
            MODEL,
            "--local-files-only/--no-local-files-only",
            help="Use downloaded weights only; never access the network.",
        ),
    ] = None
    data_dir: Annotated[
        Path | None,
        option(
            SERVICE,
            "--data-dir",
            metavar="FOLDER",
            help="Folder of jobs, files and uploads.  [default: forescribe in XDG_DATA_HOME]",
        ),
    ] = None
    settings: Annotated[
        Path | None,
        option(SERVICE, "--settings", metavar="FILE", help="TOML file with further settings."),
    ] = None


@takes(ServeOptions)
def serve(**values: Any) -> None:
    """Serve OpenAI's audio API over HTTP.

    Every setting is also an environment variable, FORESCRIBE_MAX_AUDIO_S for max_audio_s; see
    docs/serve.md.
    """
    options = ServeOptions(**values)
    try:
        from forescribe.api.process.listening_socket import bound
        from forescribe.api.settings import load
    except ModuleNotFoundError as error:
        raise UsageError(f"serve needs {error.name}: {how_to_install('serve')}") from error

    given = asdict(options)
    settings = load(given.pop("settings"), **given)
    with bound(settings) as listening:
        from forescribe.api.process.workers import run  # after the port is bound: it takes seconds

        address, port = listening.getsockname()[:2]
        host = f"[{address}]" if ":" in address else address
        typer.echo(f"forescribe: http://{host}:{port}", err=True)
        run(settings, listening)


@dataclass(frozen=True)
class WorkerOptions:
    """The parsed command line; None leaves a setting to the environment or the file."""

    database: Annotated[
        str | None,
        option(
            SERVICE,
            "--database",
            metavar="URL",
            help="The services' database: postgresql://user:password@host/name.",
        ),
    ] = None
    blobs: Annotated[
        str | None,
        option(
            SERVICE,
            "--blobs",
            metavar="URL",
            help="Their object storage, such as s3://bucket/prefix; gs:// and az:// too.",
        ),
    ] = None
    data_dir: Annotated[
        Path | None,
        option(SERVICE, "--data-dir", metavar="FOLDER", help="A folder of this worker alone."),
    ] = None
    host: Annotated[
        str | None,
        option(
            SERVICE,
            "--host",
            metavar="ADDRESS",
            help="Address to bind for --port.  [default: 127.0.0.1]",
        ),
    ] = None
    port: Annotated[
        int | None,
        option(
            SERVICE,
            "--port",
            metavar="PORT",
            help="Answer /health, /ready and /metrics there.  [default: no port]",
        ),
    ] = None
    concurrency: Annotated[
        int | None,
        option(PERFORMANCE, "--concurrency", metavar="N", help="Jobs at a time.  [default: 4]"),
    ] = None
    until_idle: Annotated[
        float | None,
        option(
            SERVICE,
            "--until-idle",
            metavar="SECONDS",
            help="End when no job was open for so long.  [default: never]",
        ),
    ] = None
    model: Annotated[
        str | None,
        option(
            MODEL,
            "--model",
            "-m",
            metavar="MODEL",
            help="Preset, Hugging Face id or local folder.  [default: large]",
        ),
    ] = None
    draft: Annotated[
        str | None,
        option(
            MODEL,
            "--draft",
            metavar="MODEL",
            help="Draft model, named like --model.  [default: the model's own]",
        ),
    ] = None
    device: Annotated[
        str | None,
        option(
            PERFORMANCE,
            "--device",
            metavar="DEVICE",
            help="auto, cuda, cuda:N, hpu, mps or cpu.  [default: auto]",
        ),
    ] = None
    dtype: Annotated[
        str | None,
        option(
            PERFORMANCE,
            "--dtype",
            metavar="TYPE",
            help="auto, float32, float16 or bfloat16.  [default: auto]",
        ),
    ] = None
    batch_size: Annotated[
        int | None,
        option(
            PERFORMANCE,
            "--batch-size",
            metavar="N",
            help="Windows decoded together.  [default: 8]",
        ),
    ] = None
    settings: Annotated[
        Path | None,
        option(SERVICE, "--settings", metavar="FILE", help="TOML file with further settings."),
    ] = None


@takes(WorkerOptions)
def worker(**values: Any) -> None:
    """Take jobs from the queue of `forescribe serve`, on any machine; one worker for each accelerator.

    SIGTERM ends it: the work that it has goes back to the queue. Every setting is also an environment
    variable, FORESCRIBE_DATABASE_URL for --database; see docs/several-machines.md.
    """
    given = asdict(WorkerOptions(**values))
    try:
        from forescribe.api.process.listening_socket import bound
        from forescribe.api.settings import load
    except ModuleNotFoundError as error:
        raise UsageError(f"worker needs {error.name}: {how_to_install('serve')}") from error

    named = {
        "database_url": given.pop("database"),
        "blobs_url": given.pop("blobs"),
        "job_concurrency": given.pop("concurrency"),
    }
    idle_s = given.pop("until_idle")
    if idle_s is not None and not idle_s > 0:
        raise UsageError(f"--until-idle {idle_s:g}: give seconds above 0")
    listens = given["port"] is not None
    settings = load(given.pop("settings"), **given, **named)
    with bound(settings) if listens else nullcontext() as listening:
        # After the port is bound: it takes seconds.
        from forescribe.api.process.server import run_worker, worker_settings

        settings = worker_settings(settings)
        if listening is not None:
            address, port = listening.getsockname()[:2]
            typer.echo(f"forescribe worker: http://{address}:{port}/ready", err=True)
        run_worker(settings, listening, idle_s)


BARE = re.compile(r"[A-Za-z0-9_-]+")
"""Names that TOML takes without quotes."""


def key(
    name: Annotated[str, argument("NAME", help="Name of the key's owner.")],
    scope: Annotated[
        list[str] | None,
        option(
            SERVICE, "--scope", metavar="SCOPE", help="audio, text, jobs or metrics; repeatable."
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        option(
            SERVICE,
            "--limit",
            metavar="NAME=N",
            help="A limit or quota, such as requests_per_minute=60 or audio_s_per_month=36000; repeatable.",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        option(SERVICE, "--expires", metavar="DATE", help="Last day of the key, as 2027-01-31."),
    ] = None,
) -> None:
    """Make an API key for the service.

    The key is printed once; the settings file holds its hash and its rights.
    """
    from forescribe.api.access.keys import digest, new_key

    rights: dict[str, Any] = {}
    if scope:
        rights["scopes"] = scope
    if expires is not None:
        rights["expires"] = _day(expires)
    rights |= dict(_limit(text) for text in limit or ())
    value = new_key()
    _check({"hash": digest(value), **rights})
    typer.echo(value)
    typer.echo(_lines(name, digest(value), rights), err=True)


def _check(rights: dict[str, Any]) -> None:
    """Raises UsageError that names the wrong right."""
    from pydantic import ValidationError

    from forescribe.api.access.keys import Rights

    try:
        Rights.model_validate(rights)
    except ValidationError as error:
        first = error.errors()[0]
        place = first["loc"][0] if first["loc"] else "rights"
        if first["type"] == "extra_forbidden":
            known = [n for n in Rights.model_fields if n not in ("hashes", "scopes", "expires")]
            raise UsageError(f"--limit {place}: unknown; known: {', '.join(known)}") from error
        raise UsageError(f"{place}: {first['msg']}") from error


def _limit(text: str) -> tuple[str, int | float]:
    name, _, value = text.partition("=")
    try:
        number = float(value)
        return name, int(number) if number.is_integer() else number
    except (ValueError, OverflowError):
        raise UsageError(f"--limit {text}: give NAME=N, such as requests_per_day=1000") from None


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--expires {text}: give a date as 2027-01-31") from None


def _lines(name: str, hash: str, rights: dict[str, Any]) -> str:
    """The lines for the settings file."""
    shown = name if BARE.fullmatch(name) else json.dumps(name)
    if not rights:
        return f'for the settings file, under [api_keys]: {shown} = "{hash}"'
    lines = [f"[api_keys.{shown}]", f'hash = "{hash}"']
    for right, value in rights.items():
        text = value.isoformat() if isinstance(value, date) else json.dumps(value)
        lines.append(f"{right} = {text}")
    return "for the settings file:\n" + "\n".join(lines)
