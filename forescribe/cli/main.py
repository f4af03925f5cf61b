"""The whole `forescribe` command: asr's commands and the service's own. The console entry.

Imports point from here to asr, so asr knows nothing of a service. Heavy imports stay inside the
commands; without the extra `serve` installed, all others work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forescribe.asr.errors import UsageError

from . import transcribe
from .bench import bench
from .generate import generate

app, main = transcribe.app, transcribe.main

app.command()(generate)
app.add_typer(bench)


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Where to listen.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(metavar="N", help="[default: 8000]")] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="NAME", help="As for transcribe.  [default: large]"),
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", metavar="NAME", help="As for transcribe.")
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(
            "--language", "-l", metavar="LANG", help="Where a request names none.  [default: auto]"
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="auto, cuda, cuda:N, hpu, mps or cpu.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="TYPE", help="auto, float32, float16 or bfloat16.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(metavar="N", help="Windows decoded together.  [default: 8]")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processes, one for each GPU from 0 on.  [default: 1]"),
    ] = None,
    local_files_only: Annotated[
        bool | None,
        typer.Option("--local-files-only/--no-local-files-only", help="Never download weights."),
    ] = None,
    settings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TOML file with further settings.")
    ] = None,
) -> None:
    """Serve OpenAI's audio API over HTTP.

    Every setting is also an environment variable, FORESCRIBE_MAX_AUDIO_S for max_audio_s; see
    docs/serve.md.
    """
    try:
        from forescribe.api.process.listening_socket import bound
        from forescribe.api.settings import load
    except ModuleNotFoundError as error:
        raise UsageError(
            f"serve needs {error.name}: run `scripts/setup serve` in forescribe's folder"
        ) from error

    chosen = load(
        settings,
        host=host,
        port=port,
        model=model,
        draft=draft,
        language=language,
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        workers=workers,
        local_files_only=local_files_only,
    )
    with bound(chosen) as listening:
        from forescribe.api.process.launcher import run  # takes seconds

        place = listening.getsockname()
        host = f"[{place[0]}]" if ":" in place[0] else place[0]
        typer.echo(f"forescribe: http://{host}:{place[1]}", err=True)
        run(chosen, listening)


@app.command()
def key(name: Annotated[str, typer.Argument(metavar="NAME", help="Who it is for.")]) -> None:
    """Make an API key for the service: printed once, kept as a hash."""
    from forescribe.api.access.keys import digest, new_key

    made = new_key()
    typer.echo(made)
    typer.echo(f'for the settings file, under [api_keys]: {name} = "{digest(made)}"', err=True)


if __name__ == "__main__":
    main()
