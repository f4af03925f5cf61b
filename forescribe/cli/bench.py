"""`forescribe bench`: compares speed and output with other programs on the same weights.

Knows the options, where results are printed, and the exit code: 0; 1 if a row of this engine
differs from its reference; 2 if nothing could be measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from forescribe.asr.errors import UsageError

from ..bench.provenance import INSTALL, REDUCED, Sink, missing
from .option_records import (
    DIAGNOSTICS,
    INPUT,
    MODEL,
    OUTPUT,
    PERFORMANCE,
    SectionedCommand,
    argument,
    option,
    takes,
)
from .options import AUTO, EngineName

PROGRAM = "forescribe"

DTYPES = ("float32", *REDUCED)
DRAFT_DTYPES = (AUTO, "float32", "float16", "bfloat16", "int8")
"""Number formats in which a CPU decodes: the third one of a device, float16, has no arithmetic there."""

bench = typer.Typer(
    name="bench",
    help="Compare speed, tokens and error rate with other programs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Repeats = Annotated[
    int,
    option(
        DIAGNOSTICS,
        "--repeats",
        metavar="N",
        min=1,
        help="Runs of every system; the median is reported.",
    ),
]
RecordFile = Annotated[
    str | None,
    option(
        OUTPUT,
        "--json",
        metavar="FILE",
        help="File for the JSON record (one line), or - for stdout.",
    ),
]


@dataclass(frozen=True)
class BenchTextOptions:
    """The parsed command line. Raises UsageError for lists that are not of numbers."""

    model: Annotated[
        str | None,
        option(
            MODEL,
            "--model",
            "-m",
            metavar="MODEL",
            help="Preset, downloaded Hugging Face id or local folder.  [default: demo-text]",
        ),
    ] = None
    draft: Annotated[
        str | None,
        option(
            MODEL,
            "--draft",
            metavar="MODEL",
            help="Draft model, named like --model; `none` measures without one.  "
            "[default: the preset's]",
        ),
    ] = None
    prompts: Annotated[
        Path | None,
        option(
            INPUT,
            "--prompts",
            metavar="FILE",
            help="Text file with one prompt per line.  [default: eight built-in prompts]",
        ),
    ] = None
    chat: Annotated[
        bool | None,
        option(
            INPUT,
            "--chat/--no-chat",
            help="Treat prompts as a user's messages.  "
            "[default: yes if the model has a chat template]",
        ),
    ] = None
    max_tokens: Annotated[
        int,
        option(OUTPUT, "--max-tokens", metavar="N", min=1, help="Maximum tokens per text."),
    ] = 128
    batch: Annotated[
        str,
        option(
            PERFORMANCE,
            "--batch",
            metavar="N,N",
            help="Batch sizes; 1 is always measured.",
        ),
    ] = "1,4,8"
    gamma: Annotated[
        str,
        option(
            PERFORMANCE,
            "--gamma",
            metavar="N,N",
            help="Drafted tokens per round, 1 to 64; auto is always measured.",
        ),
    ] = "5"
    repeats: Repeats = 3
    device: Annotated[
        str,
        option(
            PERFORMANCE, "--device", metavar="DEVICE", help="auto, cuda, cuda:N, hpu, mps or cpu."
        ),
    ] = "cpu"
    dtype: Annotated[
        str,
        option(
            PERFORMANCE,
            "--dtype",
            metavar="TYPE,TYPE",
            help="auto, float32, float16, bfloat16, int8 or int8-bfloat16 (as --quantize int8 with that "
            "--dtype); near-ties may flip below float32. Further ones add rows of this engine.",
        ),
    ] = "float32"
    draft_dtype: Annotated[
        str,
        option(
            PERFORMANCE,
            "--draft-dtype",
            metavar="TYPE",
            help="Number format of this engine's draft: auto, float32, float16, bfloat16 or int8.",
        ),
    ] = AUTO
    threads: Annotated[
        int,
        option(
            PERFORMANCE,
            "--threads",
            metavar="N",
            min=0,
            max=1024,
            help="CPU threads; 0 leaves the number to PyTorch.",
        ),
    ] = 0
    engine: EngineName = AUTO
    json: RecordFile = None

    def __post_init__(self) -> None:
        _ = self.batches, self.gammas, self.dtypes

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Number formats, the first of them for all systems."""
        return parse_dtypes("--dtype", self.dtype, ("auto", *DTYPES, "float16"))

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes."""
        return parse_numbers("--batch", self.batch, 1024)

    @property
    def gammas(self) -> tuple[int, ...]:
        """Drafted tokens per round."""
        return parse_numbers("--gamma", self.gamma, 64)


@bench.command("text", cls=SectionedCommand)
@takes(BenchTextOptions)
def text(**values: Any) -> None:
    """Compare text generation with transformers' greedy, assisted and prompt-lookup generation.

    All systems use the same weights in one process and take turns. `equal` counts the texts that equal
    transformers' greedy decoding of one prompt at a time; the exit code is 1 if one of ours does not.
    Rows of a further --dtype must equal this engine's plain decoding in it.
    """
    options = BenchTextOptions(**values)
    sink = Sink(options.json)
    sink.check()
    from ..bench import text as bench_text

    result = bench_text.measured(
        bench_text.Options(
            model=options.model,
            draft=options.draft,
            prompts=options.prompts,
            chat=options.chat,
            max_tokens=options.max_tokens,
            batch=options.batches,
            gamma=options.gammas,
            repeats=options.repeats,
            device=options.device,
            dtype=options.dtypes[0],
            further=options.dtypes[1:],
            draft_dtype=options.draft_dtype,
            threads=options.threads,
            engine=options.engine,
        ),
        log,
    )
    sink.write(result.text(), result.record(PROGRAM))
    for row in result.differing:
        log(f"{row.system.label}: differs from {result.reference(row).system.label}")
    if result.differing:
        raise typer.Exit(1)


@dataclass(frozen=True)
class BenchTranscribeOptions:
    """The parsed command line. Raises UsageError for values that are impossible."""

    audio: Annotated[
        list[str],
        argument("AUDIO...", help="Recordings, joined in this order and repeated as needed."),
    ]
    reference: Annotated[
        list[str] | None,
        option(
            INPUT,
            "--reference",
            metavar="FILE",
            help="Reference text of a recording; give one per recording, in order.  "
            "[default: the .txt file beside each recording]",
        ),
    ] = None
    minutes: Annotated[
        float,
        option(
            INPUT,
            "--minutes",
            metavar="MINUTES",
            min=0,
            help="Minimum length; whole recordings are repeated until it is reached.",
        ),
    ] = 10.0
    json: RecordFile = None
    model: Annotated[
        str,
        option(
            MODEL,
            "--model",
            "-m",
            metavar="MODEL",
            help="Preset, downloaded Hugging Face id or local folder.",
        ),
    ] = "tiny.en"
    draft: Annotated[
        str | None,
        option(
            MODEL,
            "--draft",
            metavar="MODEL",
            help="Draft model, named like --model.  [default: the model's own]",
        ),
    ] = None
    batch: Annotated[
        str,
        option(PERFORMANCE, "--batch", metavar="N,N", help="Batch sizes of this engine."),
    ] = "1,4,8,16"
    peer_batch: Annotated[
        str,
        option(
            PERFORMANCE,
            "--peer-batch",
            metavar="N,N",
            help="Batch sizes of other systems that can batch; 1 is always measured.",
        ),
    ] = "8"
    gamma: Annotated[
        int,
        option(
            PERFORMANCE,
            "--gamma",
            metavar="N",
            min=0,
            max=64,
            help="Drafted tokens per round, measured next to 0 and auto; 0 measures no drafting.",
        ),
    ] = 5
    threads: Annotated[
        int,
        option(
            PERFORMANCE,
            "--threads",
            metavar="N",
            min=0,
            max=1024,
            help="CPU threads; 0 is all cores.",
        ),
    ] = 0
    peer_threads: Annotated[
        str | None,
        option(
            PERFORMANCE,
            "--peer-threads",
            metavar="N,N",
            help="CPU threads of the other systems, a row for each.  [default: 1 and all of ours]",
        ),
    ] = None
    only: Annotated[
        list[str] | None,
        option(
            DIAGNOSTICS,
            "--only",
            metavar="SYSTEM",
            help="System to compare with; may be given several times. One of forescribe, transformers, "
            "transformers assisted, 'transformers assisted, its defaults', faster-whisper, "
            "faster-whisper batched.  [default: all]",
        ),
    ] = None
    engine: EngineName = AUTO
    dtype: Annotated[
        str,
        option(
            PERFORMANCE,
            "--dtype",
            metavar="TYPE,TYPE",
            help="Number formats of this engine's rows: float32, bfloat16, int8, int8-bfloat16 (--quantize "
            "int8 with that --dtype); float32 is always measured, and what other systems are compared with.",
        ),
    ] = "float32"
    draft_dtype: Annotated[
        str,
        option(
            PERFORMANCE,
            "--draft-dtype",
            metavar="TYPE,TYPE",
            help="Number formats of this engine's draft, with rows for each: auto, float32, float16, "
            "bfloat16 or int8. Same tokens.",
        ),
    ] = AUTO
    modules: Annotated[
        bool,
        option(
            DIAGNOSTICS,
            "--modules/--no-modules",
            help="Also decode with transformers' modules at batch 1 without drafts, in each --dtype: the "
            "reference of the other engines.",
        ),
    ] = False
    repeats: Repeats = 3

    def __post_init__(self) -> None:
        _ = self.batches, self.peer_batches, self.peer_thread_counts
        _ = self.dtypes, self.draft_dtypes
        if not math.isfinite(self.minutes):
            raise UsageError(f"--minutes {self.minutes} is no length: give a number of minutes")

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes of this engine."""
        return parse_numbers("--batch", self.batch, 1024)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Number formats of this engine's rows."""
        return parse_dtypes("--dtype", self.dtype, DTYPES)

    @property
    def draft_dtypes(self) -> tuple[str, ...]:
        """Number formats of this engine's draft."""
        return parse_dtypes("--draft-dtype", self.draft_dtype, DRAFT_DTYPES)

    @property
    def peer_batches(self) -> tuple[int, ...]:
        """Batch sizes of other systems, besides 1."""
        return tuple(n for n in parse_numbers("--peer-batch", self.peer_batch, 1024) if n != 1)

    @property
    def peer_thread_counts(self) -> tuple[int, ...] | None:
        """Thread counts of other systems; None for one and all."""
        given = self.peer_threads
        return None if given is None else parse_numbers("--peer-threads", given, 1024)


@bench.command("transcribe", cls=SectionedCommand)
@takes(BenchTranscribeOptions)
def transcribe(**values: Any) -> None:
    """Compare transcription with transformers and faster-whisper on the same weights and windows.

    On CPUs, in English, with greedy decoding; every run is a separate process. Next to each speed
    stand the tokens that equal this engine's plain decoding, and the word error rate. The exit code
    is 1 if a row of this engine differs. The row of a system that cannot run gives the reason."""
    options = BenchTranscribeOptions(**values)
    sink = Sink(options.json)
    sink.check()
    package = missing("jiwer")
    if package is not None:
        raise UsageError(f"bench transcribe needs {package}: {INSTALL}")
    from ..bench import speech

    result = speech.measured(
        speech.Options(
            audio=tuple(options.audio),
            model=options.model,
            draft=options.draft,
            reference=tuple(options.reference) if options.reference else None,
            minutes=options.minutes,
            batch=options.batches,
            peer_batch=options.peer_batches,
            gamma=options.gamma,
            repeats=options.repeats,
            threads=options.threads,
            peer_threads=options.peer_thread_counts,
            only=_systems(options.only),
            engine=options.engine,
            dtype=options.dtypes,
            draft_dtype=options.draft_dtypes,
            modules=options.modules,
        ),
        log,
    )
    sink.write(result.text(), result.record(PROGRAM))
    for row in result.differing:
        label = f"{row.system}, batch {row.batch}, gamma {row.gamma}, {row.dtype}"
        log(f"{label}: differs from this engine's plain decoding")
    if result.differing:
        raise typer.Exit(1)


def _systems(only: Sequence[str] | None) -> tuple[str, ...]:
    """The systems to measure. Raises UsageError for unknown ones and for missing packages."""
    from ..bench.jobs import BATCHED, NAMES, SEQUENTIAL

    if not only:
        return NAMES
    unknown = [name for name in only if name not in NAMES]
    if unknown:
        known = ", ".join(f"'{name}'" for name in NAMES)
        raise UsageError(f"--only '{unknown[0]}' is no system; known: {known}")
    package = missing("faster_whisper", "ctranslate2")
    unavailable = [name for name in only if name in (SEQUENTIAL, BATCHED)]
    if package is not None and unavailable:
        raise UsageError(f"--only '{unavailable[0]}' needs {package}: {INSTALL}")
    return tuple(only)


def parse_numbers(option: str, text: str, most: int) -> tuple[int, ...]:
    """Read a list such as 1,4,8 of numbers from 1 to `most`; duplicates are dropped. Raises
    UsageError."""
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if part not in map(str, range(1, most + 1))]
    if wrong:
        raise UsageError(
            f"{option} {text}: '{wrong[0]}' is no number from 1 to {most}; write them as 1,4,8"
        )
    return tuple(dict.fromkeys(map(int, parts)))


def parse_dtypes(option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Read a list of number formats; duplicates are dropped. Raises UsageError."""
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if part not in known]
    if wrong:
        raise UsageError(f"{option} {text}: '{wrong[0]}' is none of {', '.join(known)}")
    return tuple(dict.fromkeys(parts))


def log(line: str) -> None:
    typer.echo(line, err=True)
