"""`forescribe serve`: the HTTP service.

Knows the options; everything else is a setting of `forescribe.api`. Needs the extra `serve`,
without which the other commands work.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from forescribe.asr.errors import UsageError
from forescribe.asr.installing import how_to_install

from ...options.option_records import (
    DECODING,
    MODEL,
    PERFORMANCE,
    SERVICE,
    option,
    takes,
)


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
        from forescribe.api.process.workers import (
            launch as run,
        )  # after the port is bound: it takes seconds

        address, port = listening.getsockname()[:2]
        host = f"[{address}]" if ":" in address else address
        typer.echo(f"forescribe: http://{host}:{port}", err=True)
        run(settings, listening)
