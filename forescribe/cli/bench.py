"""The `bench` commands: how fast it is beside its peers, and whether it is the same.

Exit status: 0; 1 where this engine's own rows differ from what they must equal; 2 where nothing could be
measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from forescribe.asr.errors import UsageError

from ..bench.needs import INSTALL, missing
from ..bench.sink import Sink

PROGRAM = "forescribe"

bench = typer.Typer(
    name="bench",
    help="Speed next to equality and error rate, beside other programs on the same weights.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Repeats = Annotated[
    int, typer.Option("--repeats", metavar="N", min=1, help="Turns of each; the median counts.")
]
Record = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Where the record goes, one line; - is stdout."),
]


@bench.command("text")
def text(
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="Preset, hub id in the cache, or folder.  [default: demo-text]",
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            "--draft",
            metavar="NAME",
            help="Likewise; `none` measures without a draft model.  [default: the preset's]",
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help="One a line.  [default: eight of ours]"),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Prompts are a user's words.  [default: where the model has a chat template]",
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", min=1, help="Of one text, at most.")
    ] = 128,
    batch: Annotated[
        str,
        typer.Option("--batch", metavar="N,N", help="Texts at a time; 1 is measured in any case."),
    ] = "1,4,8",
    gamma: Annotated[
        str,
        typer.Option(
            "--gamma", metavar="N,N", help="Drafted tokens per round, 1 to 64, beside auto."
        ),
    ] = "5",
    repeats: Repeats = 3,
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="auto, cuda, cuda:N, hpu, mps or cpu.")
    ] = "cpu",
    dtype: Annotated[
        str,
        typer.Option(
            "--dtype",
            metavar="TYPE",
            help="auto, float32, float16 or bfloat16; in the last two near-ties may flip.",
        ),
    ] = "float32",
    threads: Annotated[
        int, typer.Option("--threads", metavar="N", min=0, help="0 is torch's choice.")
    ] = 0,
    json: Record = None,
) -> None:
    """Text generation beside transformers' greedy, assisted and prompt-lookup generation.

    All on the same weights in one process, in turns. `equal` counts texts that are those of transformers'
    greedy decoding, one prompt at a time; exit status 1 where one of ours is not.
    """
    batches, gammas = _numbers("--batch", batch, 1024), _numbers("--gamma", gamma, 64)
    sink = Sink(json)
    sink.check()
    from ..bench import bench_text as benchmark

    options = benchmark.Options(
        model=model,
        draft=draft,
        prompts=prompts,
        chat=chat,
        max_tokens=max_tokens,
        batch=batches,
        gamma=gammas,
        repeats=repeats,
        device=device,
        dtype=dtype,
        threads=threads,
    )
    result = benchmark.measured(options, _say)
    sink.write(result.text(), result.record(PROGRAM))
    _verdict([row.system.label for row in result.differing], "transformers' greedy text")


@bench.command("transcribe")
def transcribe(
    audio: Annotated[
        list[str],
        typer.Argument(metavar="AUDIO...", help="Recordings, joined in this order and again."),
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", metavar="NAME", help="Preset, hub id in the cache, or folder."
        ),
    ] = "demo",
    draft: Annotated[
        str | None,
        typer.Option("--draft", metavar="NAME", help="Likewise.  [default: the model's own]"),
    ] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option(
            "--reference",
            metavar="FILE",
            help="The words of a recording; once for each, in their order.  "
            "[default: the .txt beside each]",
        ),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(
            "--minutes", metavar="M", min=0, help="At least so long, of whole recordings."
        ),
    ] = 10.0,
    batch: Annotated[
        str, typer.Option("--batch", metavar="N,N", help="Windows at a time, of this engine.")
    ] = "1,4,8,16",
    peer_batch: Annotated[
        int,
        typer.Option("--peer-batch", metavar="N", min=1, help="Of the peers that batch, beside 1."),
    ] = 8,
    gamma: Annotated[
        int,
        typer.Option(
            "--gamma",
            metavar="N",
            min=0,
            max=64,
            help="Drafted tokens per round, beside 0 and auto; 0: none.",
        ),
    ] = 5,
    repeats: Repeats = 3,
    threads: Annotated[
        int,
        typer.Option("--threads", metavar="N", min=0, help="Of every system; 0 is all cores."),
    ] = 0,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="SYSTEM",
            help="Beside this engine; may come again. forescribe, transformers, transformers assisted, "
            "'transformers assisted, its defaults', faster-whisper, faster-whisper batched.  "
            "[default: all]",
        ),
    ] = None,
    json: Record = None,
) -> None:
    """Transcription beside transformers and faster-whisper, on the same weights and windows.

    On processors, in English, greedy; every run in a process of its own. Beside each speed stand the tokens
    that equal this engine's plain decoding, and the word error rate. Exit status 1 where a row of this
    engine differs. A peer that cannot run has a row that says why.
    """
    batches = _numbers("--batch", batch, 1024)
    if not math.isfinite(minutes):
        raise UsageError(f"--minutes {minutes} is no length: give a number of minutes")
    sink = Sink(json)
    sink.check()
    package = missing("jiwer")
    if package is not None:
        raise UsageError(f"bench transcribe needs {package}: {INSTALL}")
    from ..bench import bench_transcribe as benchmark

    options = benchmark.Options(
        audio=tuple(audio),
        model=model,
        draft=draft,
        reference=tuple(reference) if reference else None,
        minutes=minutes,
        batch=batches,
        peer_batch=peer_batch,
        gamma=gamma,
        repeats=repeats,
        threads=threads,
        only=_systems(only),
    )
    result = benchmark.measured(options, _say)
    sink.write(result.text(), result.record(PROGRAM))
    labels = [f"{row.system}, batch {row.batch}, gamma {row.gamma}" for row in result.differing]
    _verdict(labels, "its own plain decoding")


def _systems(only: Sequence[str] | None) -> tuple[str, ...]:
    """Raises UsageError for a name that is none, and for one whose packages are not installed."""
    from ..bench.systems import BATCHED, NAMES, SEQUENTIAL

    if not only:
        return NAMES
    unknown = [name for name in only if name not in NAMES]
    if unknown:
        known = ", ".join(f"'{name}'" for name in NAMES)
        raise UsageError(f"--only '{unknown[0]}' is no system; known: {known}")
    package = missing("faster_whisper", "ctranslate2")
    barred = [name for name in only if name in (SEQUENTIAL, BATCHED)]
    if package is not None and barred:
        raise UsageError(f"--only '{barred[0]}' needs {package}: {INSTALL}")
    return tuple(only)


def _numbers(option: str, said: str, most: int) -> tuple[int, ...]:
    """A list such as 1,4,8 of numbers from 1 to `most`, each once. Raises UsageError."""
    parts = [part.strip() for part in said.split(",")]
    wrong = [p for p in parts if p not in map(str, range(1, most + 1))]
    if wrong:
        raise UsageError(
            f"{option} {said}: '{wrong[0]}' is no number from 1 to {most}; write them as 1,4,8"
        )
    return tuple(dict.fromkeys(map(int, parts)))


def _verdict(differing: Sequence[str], reference: str) -> None:
    """Names the rows that break the promise, and leaves with 1."""
    for label in differing:
        _say(f"{label}: differs from {reference}")
    if differing:
        raise typer.Exit(1)


def _say(line: str) -> None:
    typer.echo(line, err=True)
