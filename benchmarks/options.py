"""The options of `benchmarks.transcribe` and `benchmarks.text`, and how all comparisons are started.

Knows the options, where results are printed, and the exit code: 0; 1 if a row of this engine
differs from its reference; 2 if nothing could be measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from benchmarks.provenance import INSTALL, REDUCED, Sink, missing
from forescribe.asr.errors import UsageError
from forescribe.cli.main import CONTEXT, reported
from forescribe.cli.option_records import (
    DIAGNOSTICS,
    INPUT,
    OUTPUT,
    PERFORMANCE,
    SectionedCommand,
    arg,
    like,
    opt,
    takes,
)
from forescribe.cli.options import AUTO, LoadOptions

DTYPES = ("float32", *REDUCED)
DRAFT_DTYPES = (AUTO, "float32", "float16", "bfloat16", "int8")
"""Number formats in which a CPU decodes: the third one of a device, float16, has no arithmetic there."""


def start(command: Callable[..., None], program: str) -> None:
    """Run a command with the arguments of this process. Errors are one line, as those of `forescribe`."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=CONTEXT)
    app.command(cls=SectionedCommand)(command)
    with reported():
        app(prog_name=f"python -m {program}")


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What all comparisons share."""

    model: str | None = like(
        LoadOptions, "model", "Preset, downloaded Hugging Face id or local folder."
    )
    draft: str | None = like(LoadOptions, "draft", "Draft model, named like --model.")
    engine: str = like(LoadOptions, "engine")
    threads: int = opt(
        PERFORMANCE, "--threads N", "CPU threads; 0 is all cores.", 0, min=0, max=1024
    )
    repeats: int = opt(
        DIAGNOSTICS,
        "--repeats N",
        "Runs of every system; the median is reported.",
        3,
        min=1,
    )
    json: str | None = opt(
        OUTPUT, "--json FILE", "File for the JSON record (one line), or - for stdout."
    )


@dataclass(frozen=True, kw_only=True)
class BenchTextOptions(BenchOptions):
    """The parsed command line. Raises UsageError for lists that are not of numbers."""

    model: str | None = like(BenchOptions, "model", shown="demo-text")
    draft: str | None = like(
        BenchOptions,
        "draft",
        "Draft model, named like --model; `none` measures without one.",
        shown="the preset's",
    )
    prompts: Path | None = opt(
        INPUT,
        "--prompts FILE",
        "Text file with one prompt per line.",
        shown="eight built-in prompts",
    )
    chat: bool | None = opt(
        INPUT,
        "--chat/--no-chat",
        "Treat prompts as a user's messages.",
        shown="yes if the model has a chat template",
    )
    max_tokens: int = opt(OUTPUT, "--max-tokens N", "Maximum tokens per text.", 128, min=1)
    batch: str = opt(PERFORMANCE, "--batch N,N", "Batch sizes; 1 is always measured.", "1,4,8")
    gamma: str = opt(
        PERFORMANCE,
        "--gamma N,N",
        "Drafted tokens per round, 1 to 64; auto is always measured.",
        "5",
    )
    device: str = like(LoadOptions, "device", default="cpu")
    dtype: str = opt(
        PERFORMANCE,
        "--dtype TYPE,TYPE",
        "auto, float32, float16, bfloat16, int8 or int8-bfloat16 (as --quantize int8 with that --dtype); "
        "near-ties may flip below float32. Further ones add rows of this engine.",
        "float32",
    )
    draft_dtype: str = like(
        LoadOptions,
        "draft_dtype",
        "Number format of this engine's draft: auto, float32, float16, bfloat16 or int8.",
    )
    threads: int = like(BenchOptions, "threads", "CPU threads; 0 leaves the number to PyTorch.")

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
    from benchmarks import text as bench_text

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
    sink.write(result.text(), result.record("benchmarks.text"))
    for row in result.differing:
        log(f"{row.system.label}: differs from {result.reference(row).system.label}")
    if result.differing:
        raise typer.Exit(1)


@dataclass(frozen=True, kw_only=True)
class BenchTranscribeOptions(BenchOptions):
    """The parsed command line. Raises UsageError for values that are impossible."""

    audio: list[str] = arg("AUDIO...", "Recordings, joined in this order and repeated as needed.")
    model: str = like(BenchOptions, "model", default="tiny.en", shown=None)
    reference: list[str] | None = opt(
        INPUT,
        "--reference FILE",
        "Reference text of a recording; give one per recording, in order.",
        shown="the .txt file beside each recording",
    )
    minutes: float = opt(
        INPUT,
        "--minutes MINUTES",
        "Minimum length; whole recordings are repeated until it is reached.",
        10.0,
        min=0,
    )
    batch: str = opt(PERFORMANCE, "--batch N,N", "Batch sizes of this engine.", "1,4,8,16")
    peer_batch: str = opt(
        PERFORMANCE,
        "--peer-batch N,N",
        "Batch sizes of other systems that can batch; 1 is always measured.",
        "8",
    )
    gamma: int = opt(
        PERFORMANCE,
        "--gamma N",
        "Drafted tokens per round, measured next to 0 and auto; 0 measures no drafting.",
        5,
        min=0,
        max=64,
    )
    peer_threads: str | None = opt(
        PERFORMANCE,
        "--peer-threads N,N",
        "CPU threads of the other systems, a row for each.",
        shown="1 and all of ours",
    )
    only: list[str] | None = opt(
        DIAGNOSTICS,
        "--only SYSTEM",
        "System to compare with; may be given several times. One of forescribe, transformers, transformers "
        "assisted, 'transformers assisted, its defaults', faster-whisper, faster-whisper batched.",
        shown="all",
    )
    dtype: str = opt(
        PERFORMANCE,
        "--dtype TYPE,TYPE",
        "Number formats of this engine's rows: float32, bfloat16, int8, int8-bfloat16 (--quantize int8 with "
        "that --dtype); float32 is always measured, and what other systems are compared with.",
        "float32",
    )
    draft_dtype: str = opt(
        PERFORMANCE,
        "--draft-dtype TYPE,TYPE",
        "Number formats of this engine's draft, with rows for each: auto, float32, float16, bfloat16 or "
        "int8. Same tokens.",
        AUTO,
    )
    modules: bool = opt(
        DIAGNOSTICS,
        "--modules/--no-modules",
        "Also decode with transformers' modules at batch 1 without drafts, in each --dtype: the reference of "
        "the other engines.",
        False,
    )

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
    from benchmarks import transcribe as speech

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
    sink.write(result.text(), result.record("benchmarks.transcribe"))
    for row in result.differing:
        label = f"{row.system}, batch {row.batch}, gamma {row.gamma}, {row.dtype}"
        log(f"{label}: differs from this engine's plain decoding")
    if result.differing:
        raise typer.Exit(1)


def _systems(only: Sequence[str] | None) -> tuple[str, ...]:
    """The systems to measure. Raises UsageError for unknown ones and for missing packages."""
    from benchmarks.systems.jobs import BATCHED, NAMES, SEQUENTIAL

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
