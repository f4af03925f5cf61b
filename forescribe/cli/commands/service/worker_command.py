"""`forescribe worker`: does the jobs of services on other machines.

Knows the options; everything else is a setting of `forescribe.api`. Needs the extra `serve`.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from forescribe.asr.errors import UsageError
from forescribe.asr.installing import how_to_install

from ...options.option_records import MODEL, PERFORMANCE, SERVICE, option, takes


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
