"""Compares text generation with transformers' own, on the same weights in one process.

    python -m benchmarks.text --batch 1,4 --gamma 3,5 --json text.json

`equal` counts texts that equal transformers' greedy decoding of one prompt at a time, `tokens` the tokens
before the first difference. Rows of a further dtype are compared with this engine's plain decoding in that
dtype, and their tokens counted against the first row's too. Knows options, comparisons and the result; the
systems are in `systems/text.py`. Import is light.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import provenance
from benchmarks.options import (
    DTYPES,
    ComparisonOptions,
    Sink,
    parse_names,
    parse_numbers,
    say,
    start,
)
from benchmarks.rows import ACCEPTED, BATCH, WALL, Column, Row, compare, remarks, table
from benchmarks.systems.jobs import OURS
from forescribe.asr.errors import UsageError
from forescribe.cli.option_records import INPUT, OUTPUT, PERFORMANCE, like, opt, takes
from forescribe.cli.options import LoadOptions
from forescribe.text.presets import NGRAM, Pair, resolve

PROGRAM = "benchmarks.text"

PLAIN = f"{OURS} plain"


@dataclass(frozen=True, kw_only=True)
class TextOptions(ComparisonOptions):
    """The parsed command line. Raises UsageError for lists that are not of numbers.

    In half precision near-ties flip, so texts may differ between systems that are all correct."""

    model: str | None = like(ComparisonOptions, "model", shown="demo-text")
    draft: str | None = like(
        ComparisonOptions,
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
    threads: int = like(
        ComparisonOptions, "threads", "CPU threads; 0 leaves the number to PyTorch."
    )

    def __post_init__(self) -> None:
        _ = self.batches, self.gammas, self.dtypes

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Number formats, the first of them for all systems."""
        return parse_names("--dtype", self.dtype, ("auto", *DTYPES, "float16"))

    @property
    def batches(self) -> list[int]:
        """Batch sizes in order, with 1, which the reference uses."""
        return sorted({1, *parse_numbers("--batch", self.batch, 1024)})

    @property
    def gammas(self) -> tuple[int, ...]:
        """Drafted tokens per round."""
        return parse_numbers("--gamma", self.gamma, 64)


@takes(TextOptions)
def text(**values: Any) -> None:
    """Compare text generation with transformers' greedy, assisted and prompt-lookup generation.

    All systems use the same weights in one process and take turns. `equal` counts the texts that equal
    transformers' greedy decoding of one prompt at a time; the exit code is 1 if one of ours does not.
    Rows of a further --dtype must equal this engine's plain decoding in it.
    """
    options = TextOptions(**values)
    sink = Sink(options.json)
    sink.check()
    sink.report(PROGRAM, measured(options, say))


@dataclass(frozen=True)
class Result:
    """All rows, the reference first, and what they were measured on."""

    options: TextOptions
    pair: Pair
    prompts: Sequence[tuple[int, ...]]
    rows: Sequence[Row]
    device: str
    engine: str  # what computes the target in this engine's rows
    threads: int

    @property
    def differing(self) -> list[Row]:
        """The rows of this engine whose texts differ from the reference."""
        ours = [row for row in self.rows if row.system.startswith(OURS)]
        return [row for row in ours if row.equality is None or not row.equality.complete]

    @property
    def complaints(self) -> list[str]:
        return [
            f"{row.label}: differs from {reference(row, self.rows).label}" for row in self.differing
        ]

    def text(self) -> str:
        """Return the table, and below it the rows whose turns gave different texts."""
        first, *further = self.options.dtypes
        equal = "equal: to transformers' greedy texts of one prompt at a time"
        if further:
            equal += f", in {', '.join(further)} to this engine's plain texts"
        columns = [
            Column("system", lambda row: row.system),
            BATCH,
            *([Column("dtype", lambda row: row.dtype)] if further else []),
            WALL,
            Column("tokens/s", lambda row: _count(row) / (row.wall_s or 1), "{:.1f}"),
            Column("x greedy", lambda row: row.speed_up, "{:.2f}"),
            Column("equal", lambda row: row.equality and row.equality.in_windows),
            Column("tokens", lambda row: row.equality),
            *([Column(f"tokens as {first}", lambda row: row.equality_first)] if further else []),
            ACCEPTED,
            Column("length", lambda row: row.mean_acceptance_length, "{:.2f}"),
        ]
        lines = [*table(columns, self.rows), *remarks(self.rows, lambda row: row.label)]
        return "\n".join([provenance.machine(self.threads), equal, "", *lines])

    def record(self) -> dict[str, object]:
        """Return the JSON record, with counts of tokens."""
        target, draft, options = self.pair.target, self.pair.draft, self.options
        return {
            "device": provenance.device() | {"kind": self.device},
            "model": _name(target),
            "draft": None if draft is None else _name(draft),
            "weights": {
                "target": _weights(target),
                "draft": None if draft in (None, NGRAM) else _weights(draft),
            },
            "dtype": options.dtypes[0],
            "further_dtypes": options.dtypes[1:],
            "draft_dtype": options.draft_dtype,
            "native_kernels": provenance.instruction_set(),
            "engine": self.engine,
            "threads": self.threads,
            "prompts": len(self.prompts),
            "prompt_tokens": sum(map(len, self.prompts)),
            "max_tokens": options.max_tokens,
            "rows": [
                row.record("system", "batch", "dtype", "wall_s", "walls_s")
                | {"tokens": _count(row)}
                | row.record("equality", "equality_first", "steady")
                | row.record("acceptance_rate", "mean_acceptance_length")
                for row in self.rows
            ],
        }


def measured(options: TextOptions, say: Callable[[str], None]) -> Result:
    """Load the pair and run all systems; `say` gets a line per turn. Nothing is downloaded.

    Raises UsageError for the options, SpeculativeError for names, weights, device and
    prompts that do not fit.
    """
    import torch
    from transformers.utils import logging

    from benchmarks.systems import text as systems
    from forescribe.speculative.model_engines import ModelEngine

    logging.set_verbosity_error()  # it writes a warning per assisted round, which is no cost of decoding
    lines = None if options.prompts is None else read_prompts(options.prompts)
    pair = resolve(options.model, options.draft)
    places = [(dtype, systems.choose_format(options.device, dtype)) for dtype in options.dtypes]
    engine = ModelEngine.of(options.engine)
    if options.threads:
        torch.set_num_threads(options.threads)
    chosen: list[systems.System] = []
    for dtype, place in places:
        models = systems.load_pair(pair, place, engine, options.draft_dtype)
        if not chosen:
            target, draft, _ = models
            prompts = systems.encoded(target, lines, options.chat)
            most = systems.room(target, draft)
            systems.check_room(prompts, options.max_tokens, most, target.name)
        chosen += (systems.further_systems if chosen else systems.systems)(
            *models,
            place,
            batches=options.batches,
            gammas=options.gammas,
            most=options.max_tokens,
            dtype=dtype,
        )
    rows = compared(systems.take_turns(chosen, prompts, options.repeats, say))
    device = places[0][1].name
    return Result(options, pair, prompts, rows, device, target.engine, torch.get_num_threads())


def compared(rows: Sequence[Row]) -> list[Row]:
    """The rows with their equality, and their speed relative to the first one."""
    first = rows[0]
    return [
        replace(
            row,
            equality=compare(reference(row, rows).tokens, row.tokens),
            equality_first=compare(first.tokens, row.tokens),
            base=first,
            notes=() if row.steady else ("its turns gave different texts",),
        )
        for row in rows
    ]


def reference(row: Row, rows: Sequence[Row]) -> Row:
    """What a row must equal: transformers' greedy decoding of one prompt at a time, in a further dtype
    this engine's plain one, as engines round in different places there."""
    if row.dtype == rows[0].dtype:
        return rows[0]
    plain = ((PLAIN, 1), row.dtype)
    return next(each for each in rows if ((each.system, each.batch), each.dtype) == plain)


def read_prompts(path: Path) -> list[str]:
    """Read one prompt per line; empty lines are skipped. Raises UsageError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prompts {path} cannot be read as UTF-8 text: {error}") from error
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise UsageError(f"--prompts {path} has no prompt: write one per line")
    return prompts


def _count(row: Row) -> int:
    return sum(map(len, row.tokens))


def _name(place: str | Path) -> str:
    """The name without the path on this machine; the digests of the weights identify the model."""
    return place.name if isinstance(place, Path) else place


def _weights(name: str | Path) -> dict[str, str]:
    """The sha256 of each file of weights."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(str(name), local_files_only=True))  # it has been loaded
    return provenance.weights(folder)


if __name__ == "__main__":
    start(text, PROGRAM)
