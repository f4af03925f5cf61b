"""`python -m benchmarks.drafts`: drafters beside each other, on recordings or prompts.

Knows the options, where results are printed, and the exit code: 0; 1 if a row's tokens are not those of
plain decoding; 2 if nothing could be measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from benchmarks.options import (
    DRAFT_DTYPES,
    DTYPES,
    BenchOptions,
    BenchTextOptions,
    BenchTranscribeOptions,
    log,
    parse_dtypes,
    parse_numbers,
)
from benchmarks.provenance import INSTALL, Sink, missing
from forescribe.asr.errors import UsageError
from forescribe.cli.option_records import MODEL, PERFORMANCE, arg, like, opt, takes
from forescribe.cli.options import AUTO, LoadOptions


@dataclass(frozen=True, kw_only=True)
class BenchDraftsOptions(BenchOptions):
    """The parsed command line. Raises UsageError for values that are impossible."""

    audio: list[str] | None = arg(
        "[AUDIO...]", "Recordings, joined in this order; without one, text is generated.", None
    )
    model: str | None = like(
        BenchOptions, "model", shown="tiny.en for recordings, demo-text for text"
    )
    draft: list[str] | None = like(  # type: ignore[assignment]  # several of them
        BenchOptions,
        "draft",
        "Draft to compare, named as elsewhere: a model, or a head for text; may be given several times.",
    )
    reference: list[str] | None = like(
        BenchTranscribeOptions,
        "reference",
        "Reference text of a recording; give one per recording, in order. Without texts there are no word "
        "errors.",
    )
    minutes: float = like(BenchTranscribeOptions, "minutes", default=0.0)
    prompts: Path | None = like(BenchTextOptions, "prompts")
    max_tokens: int = like(BenchTextOptions, "max_tokens", "Maximum tokens per generated text.")
    drafter: str | None = opt(
        MODEL,
        "--drafter NAME,NAME",
        "Ways to draft in speech: model, cascade.",
        shown="model,cascade",
    )
    batch: str = opt(PERFORMANCE, "--batch N,N", "Batch sizes.", "1,4,8,16")
    gamma: str = opt(
        PERFORMANCE, "--gamma N,N", "Drafted tokens per round, 1 to 64, or auto.", AUTO
    )
    dtype: str = opt(
        PERFORMANCE,
        "--dtype TYPE",
        "Number format of the target: float32, bfloat16, int8 or int8-bfloat16.",
        "float32",
    )
    draft_dtype: str = like(LoadOptions, "draft_dtype", "Number format of the drafts.")
    repeats: int = like(
        BenchOptions, "repeats", "Turns of every drafter; the median is reported.", default=1
    )

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
    from benchmarks import drafts
    from benchmarks.draft_rows import Options

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
    sink.write(result.text(), result.record("benchmarks.drafts"))
    for row in result.differing:
        log(f"{row.drafter}, batch {row.batch}: differs from plain decoding")
    if result.differing:
        raise typer.Exit(1)
