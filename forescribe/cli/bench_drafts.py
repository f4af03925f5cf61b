"""`forescribe bench drafts`: drafters beside each other, on recordings or prompts.

Knows the options, where results are printed, and the exit code: 0; 1 if a row's tokens are not those of
plain decoding; 2 if nothing could be measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from forescribe.asr.errors import UsageError

from ..bench.provenance import INSTALL, Sink, missing
from .bench import DRAFT_DTYPES, DTYPES, PROGRAM, RecordFile, log, parse_dtypes, parse_numbers
from .option_records import DIAGNOSTICS, INPUT, MODEL, OUTPUT, PERFORMANCE, argument, option, takes
from .options import AUTO, EngineName


@dataclass(frozen=True)
class BenchDraftsOptions:
    """The parsed command line. Raises UsageError for values that are impossible."""

    audio: Annotated[
        list[str] | None,
        argument(
            "[AUDIO...]", help="Recordings, joined in this order; without one, text is generated."
        ),
    ] = None
    reference: Annotated[
        list[str] | None,
        option(
            INPUT,
            "--reference",
            metavar="FILE",
            help="Reference text of a recording; give one per recording, in order. Without "
            "texts there are no word errors.  [default: the .txt file beside each recording]",
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
    ] = 0.0
    prompts: Annotated[
        Path | None,
        option(
            INPUT,
            "--prompts",
            metavar="FILE",
            help="Text file with one prompt per line.  [default: eight built-in prompts]",
        ),
    ] = None
    max_tokens: Annotated[
        int,
        option(
            OUTPUT, "--max-tokens", metavar="N", min=1, help="Maximum tokens per generated text."
        ),
    ] = 128
    json: RecordFile = None
    model: Annotated[
        str | None,
        option(
            MODEL,
            "--model",
            "-m",
            metavar="MODEL",
            help="Preset, downloaded Hugging Face id or local folder.  "
            "[default: tiny.en for recordings, demo-text for text]",
        ),
    ] = None
    draft: Annotated[
        list[str] | None,
        option(
            MODEL,
            "--draft",
            metavar="MODEL",
            help="Draft to compare, named as elsewhere: a model, or a head for text; may be given several "
            "times.  [default: the model's own]",
        ),
    ] = None
    drafter: Annotated[
        str | None,
        option(
            MODEL,
            "--drafter",
            metavar="NAME,NAME",
            help="Ways to draft in speech: model, cascade.  [default: model,cascade]",
        ),
    ] = None
    batch: Annotated[str, option(PERFORMANCE, "--batch", metavar="N,N", help="Batch sizes.")] = (
        "1,4,8,16"
    )
    gamma: Annotated[
        str,
        option(
            PERFORMANCE,
            "--gamma",
            metavar="N,N",
            help="Drafted tokens per round, 1 to 64, or auto.",
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
            help="CPU threads; 0 is all cores.",
        ),
    ] = 0
    engine: EngineName = AUTO
    dtype: Annotated[
        str,
        option(
            PERFORMANCE,
            "--dtype",
            metavar="TYPE",
            help="Number format of the target: float32, bfloat16, int8 or int8-bfloat16.",
        ),
    ] = "float32"
    draft_dtype: Annotated[
        str,
        option(PERFORMANCE, "--draft-dtype", metavar="TYPE", help="Number format of the drafts."),
    ] = AUTO
    repeats: Annotated[
        int,
        option(
            DIAGNOSTICS,
            "--repeats",
            metavar="N",
            min=1,
            help="Turns of every drafter; the median is reported.",
        ),
    ] = 1

    def __post_init__(self) -> None:
        _ = self.batches, self.gammas
        if not math.isfinite(self.minutes):
            raise UsageError(f"--minutes {self.minutes} is no length: give a number of minutes")
        if self.audio and self.prompts is not None:
            raise UsageError(
                f"--prompts {self.prompts} is for text: leave out the recordings, or it"
            )
        if not self.audio and (self.reference or self.drafter):
            name = "--reference" if self.reference else "--drafter"
            raise UsageError(f"{name} is for recordings, and none is given")
        parse_dtypes("--dtype", self.dtype, DTYPES)
        if self.draft_dtype not in DRAFT_DTYPES:
            known = ", ".join(DRAFT_DTYPES)
            raise UsageError(f"--draft-dtype {self.draft_dtype} is none of {known}")

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes."""
        return parse_numbers("--batch", self.batch, 1024)

    @property
    def gammas(self) -> tuple[int | None, ...]:
        """Drafted tokens per round; None is auto."""
        parts = [part.strip() for part in self.gamma.split(",")]
        return tuple(
            None if part == AUTO else parse_numbers("--gamma", part, 64)[0]
            for part in dict.fromkeys(parts)
        )

    @property
    def drafters(self) -> tuple[str, ...]:
        """Ways to draft in speech. Raises UsageError for unknown ones."""
        from forescribe.asr.decode.drafting import SOURCES

        parts = [part.strip() for part in (self.drafter or "model,cascade").split(",")]
        wrong = [part for part in parts if part not in SOURCES]
        if wrong:
            raise UsageError(f"--drafter '{wrong[0]}' is none of {', '.join(SOURCES)}")
        return tuple(dict.fromkeys(parts))


@takes(BenchDraftsOptions)
def drafts(**values: Any) -> None:
    """Compare drafters: tokens per round, acceptance by depth, price and speed-up over plain decoding.

    On CPUs, with greedy decoding. All tokens must be those of plain decoding; the exit code is 1 if a row's
    are not. The row of a drafter that cannot run gives the reason."""
    options = BenchDraftsOptions(**values)
    sink = Sink(options.json)
    sink.check()
    package = missing("jiwer") if options.audio else None
    if package is not None:
        raise UsageError(f"bench drafts needs {package}: {INSTALL}")
    from ..bench import drafts
    from ..bench.draft_rows import Options

    result = drafts.measured(
        Options(
            audio=tuple(options.audio or ()),
            reference=tuple(options.reference) if options.reference else None,
            minutes=options.minutes,
            prompts=None if options.prompts is None else str(options.prompts),
            max_tokens=options.max_tokens,
            model=options.model,
            draft=tuple(options.draft or ()),
            drafters=options.drafters if options.audio else (),
            batch=options.batches,
            gamma=options.gammas,
            repeats=options.repeats,
            threads=options.threads,
            engine=options.engine,
            dtype=options.dtype,
            draft_dtype=options.draft_dtype,
        ),
        log,
    )
    sink.write(result.text(), result.record(PROGRAM))
    for row in result.differing:
        log(f"{row.drafter}, batch {row.batch}: differs from plain decoding")
    if result.differing:
        raise typer.Exit(1)
