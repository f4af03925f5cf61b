"""Rows of the result: a speed together with its equality and its error rate.

Knows how figures are computed from runs; nothing of how they are printed.

Word error rate, with a simple normaliser.

Knows text; nothing of audio.

Ratios of speed: drafts against plain decoding, and this engine against the fastest other systems.

Every ratio is between two rows, so that its equality and error rates stand beside it. Rows of one dtype are
compared with each other; those of a reduced one also with other systems in reduced precision. Knows rows;
nothing of how they are printed.

The tables of `bench transcribe`.

Knows rows, ratios and columns; computes no figures.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import jiwer

from benchmarks.provenance import Equality, Tokens, compare, layout
from benchmarks.systems.jobs import FLOAT32, MODULES, OURS, Gamma, Job, Material
from benchmarks.systems.runs import Series


def normalise(text: str) -> str:
    """Return lower-case text without punctuation and symbols; dashes separate words, other signs are
    removed.

    Nothing more: "12 %" and "twelve percent" stay different, as a model that was trained to write
    digits should write them. Error rates are therefore higher than with Whisper's own normaliser.
    """
    text = unicodedata.normalize("NFKC", text).lower()
    text = re.sub(r"[-\u2010-\u2015/]", " ", text)
    letters = (c for c in text if unicodedata.category(c)[0] not in "PS")
    return " ".join("".join(letters).split())


def error_rate(reference: str, written: str) -> float:
    """Return (substitutions + deletions + insertions) / words of the reference, over the whole file.

    Raises ValueError for a reference without words.
    """
    words = normalise(reference)
    if not words:
        raise ValueError("the reference has no words")
    return float(jiwer.wer(words, normalise(written)))


@dataclass(frozen=True)
class Row:
    """One system with one setting; no figures if there is an `error`.

    Tokens are compared with gamma 0 at batch 1: `equality` with this engine's in the row's own dtype, for
    other systems in float32; `equality_float32` with this engine's in float32; `equality_modules` with that
    of transformers' modules over the same weights, None where they were not measured."""

    system: str
    batch: int
    gamma: Gamma
    dtype: str
    wall_s: float | None = None  # median of the repeats: features, encoder and decoding
    walls_s: list[float] = field(default_factory=list)
    x_real_time: float | None = None  # of the whole file, silence included
    word_error_rate: float | None = None
    equality: Equality | None = None
    equality_float32: Equality | None = None
    equality_modules: Equality | None = None
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    peak_bytes: int | None = None
    threads: int | None = None
    load_s: float | None = None
    stages_s: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    engine: str | None = None  # what computed the target's decoder, in this engine's rows
    draft_dtype: str | None = None  # as it was asked for, in this engine's rows with drafts


@dataclass(frozen=True)
class References:
    """The tokens of gamma 0 at batch 1, by system (this engine, or the modules) and dtype."""

    tokens: Mapping[tuple[str, str], Sequence[Tokens]]

    @classmethod
    def of(cls, all_series: Sequence[Series]) -> References:
        """Those of the runs that succeeded."""
        found = {}
        for series in all_series:
            job = series.job
            plain = job.system in (OURS, MODULES) and (job.batch, job.gamma) == (1, 0)
            if plain and series.error is None and series.median.written is not None:
                found[job.system, job.dtype] = series.median.written.tokens
        return cls(found)

    def own(self, job: Job) -> Sequence[Tokens] | None:
        """What the tokens of a job must equal; None where that run failed."""
        ours = job.system in (OURS, MODULES)
        return self.tokens.get((OURS, job.dtype if ours else FLOAT32))

    def compared(self, system: str, dtype: str, tokens: Sequence[Tokens]) -> Equality | None:
        """Compare with the reference of a system; None where there is none."""
        plain = self.tokens.get((system, dtype))
        return None if plain is None else compare(plain, tokens)


def make_row(series: Series, references: References, material: Material) -> Row:
    job = series.job
    own, error = references.own(job), series.error
    if error is None and own is None:
        error = f"plain decoding in {job.dtype} failed, so its tokens have no reference"
    if error is not None or own is None:
        return Row(
            job.system,
            job.batch,
            job.gamma,
            job.dtype,
            threads=job.threads,
            error=error,
            draft_dtype=job.draft_dtype,
        )
    run = series.median
    assert run.written is not None
    drafting, tokens = run.written.drafting, run.written.tokens
    unsteady = [] if series.steady else ["its runs gave different tokens"]
    return Row(
        job.system,
        job.batch,
        job.gamma,
        job.dtype,
        wall_s=run.wall_s,
        walls_s=series.walls,
        x_real_time=material.length_s / run.wall_s,
        word_error_rate=error_rate(material.reference, " ".join(run.written.texts)),
        equality=compare(own, tokens),
        equality_float32=references.compared(OURS, FLOAT32, tokens),
        equality_modules=references.compared(MODULES, job.dtype, tokens),
        acceptance_rate=drafting.acceptance_rate if drafting else None,
        mean_acceptance_length=drafting.mean_acceptance_length if drafting else None,
        peak_bytes=max(outcome.peak_bytes for outcome in series.outcomes),
        threads=run.threads,
        load_s=run.load_s,
        stages_s=run.written.stages,
        notes=run.written.notes + unsteady,
        engine=run.written.engine,
        draft_dtype=job.draft_dtype,
    )


@dataclass(frozen=True)
class Ratio:
    """The speed of `row` as a multiple of that of `other`."""

    row: Row
    other: Row

    @property
    def speed(self) -> float:
        return wall(self.other) / wall(self.row)

    @property
    def decoding(self) -> float | None:
        """The ratio of decoding alone: admission with its cross-attention keys, and the rounds. None where
        stages are not known."""
        mine, theirs = _decoding(self.row), _decoding(self.other)
        return theirs / mine if mine and theirs else None

    def record(self) -> dict[str, object]:
        """As JSON: both rows by their settings, and the ratios."""
        return {
            "row": _settings(self.row),
            "other": _settings(self.other),
            "speed": self.speed,
            "decoding": self.decoding,
        }


def gains(rows: Sequence[Row]) -> list[Ratio]:
    """Drafts against gamma 0 of the same dtype and batch size."""
    ours = [row for row in rows if row.system == OURS and row.equality]
    plain = {(row.dtype, row.batch): row for row in ours if not row.gamma}
    pairs = ((row, plain.get((row.dtype, row.batch))) for row in ours if row.gamma)
    return [Ratio(row, other) for row, other in pairs if other is not None]


def reductions(rows: Sequence[Row]) -> list[Ratio]:
    """This engine's fastest row in a reduced dtype against its fastest in float32, by batch size."""
    return [
        Ratio(row, exact)
        for row in _bests(rows)
        if row.dtype != FLOAT32
        for exact in _bests(rows)
        if (exact.dtype, exact.batch) == (FLOAT32, row.batch)
    ]


def against_exact(rows: Sequence[Row]) -> list[Ratio]:
    """This engine's fastest row of each dtype and batch size against the fastest other system in float32
    whose tokens are all those of float32's plain decoding."""
    return list(_against(rows, is_exact, lambda row: True))


def against_reduced(rows: Sequence[Row]) -> list[Ratio]:
    """This engine's fastest row of each reduced dtype and batch size against the fastest other system in
    reduced precision, whatever its tokens: the error rates tell what both are worth."""
    return list(_against(rows, is_reduced, lambda row: row.dtype != FLOAT32))


def left_out(rows: Sequence[Row]) -> list[Row]:
    """The rows of other systems that no ratio may use: they failed, their tokens differ in float32, or no row
    of this engine is in reduced precision too."""
    reduced = any(row.dtype != FLOAT32 for row in _bests(rows))
    return [
        row
        for row in rows
        if row.system not in (OURS, MODULES)
        and not (is_exact(row) or (reduced and is_reduced(row)))
    ]


def is_exact(row: Row) -> bool:
    """Whether a row is in float32 and has all tokens of its plain decoding."""
    return row.dtype == FLOAT32 and row.equality is not None and row.equality.complete


def is_reduced(row: Row) -> bool:
    """Whether a row was measured in reduced precision."""
    return row.dtype != FLOAT32 and row.equality is not None


def wall(row: Row) -> float:
    assert row.wall_s is not None
    return row.wall_s


def _bests(rows: Sequence[Row]) -> list[Row]:
    """This engine's fastest rows by dtype and batch size, of those whose tokens are all equal to plain
    decoding's in their dtype."""
    best: dict[tuple[str, int], Row] = {}
    for row in rows:
        if row.system == OURS and row.equality is not None and row.equality.complete:
            place = (row.dtype, row.batch)
            best[place] = min(best.get(place, row), row, key=wall)
    return list(best.values())


def _against(
    rows: Sequence[Row], peer: Callable[[Row], bool], ours: Callable[[Row], bool]
) -> Iterator[Ratio]:
    """A system may use a smaller batch than this engine: not all of them have batches."""
    peers = [row for row in rows if row.system not in (OURS, MODULES) and peer(row)]
    for best in filter(ours, _bests(rows)):
        fits = [row for row in peers if row.batch <= best.batch]
        if fits:
            yield Ratio(best, min(fits, key=wall))


def _decoding(row: Row) -> float:
    return sum(s for name, s in row.stages_s.items() if name not in ("features", "encode"))


def _settings(row: Row) -> dict[str, object]:
    return {
        "system": row.system,
        "batch": row.batch,
        "gamma": row.gamma,
        "dtype": row.dtype,
        "draft_dtype": row.draft_dtype,
        "threads": row.threads,
    }


AUTO = "auto"

HEAD = (
    "system",
    "batch",
    "gamma",
    "dtype",
    "threads",
    "wall s",
    "x real time",
    "WER %",
    "equal tokens",
    "equal windows",
    "accepted",
    "mean length",
    "peak MB",
)

STAGES = ("features", "encode", "prefill", "draft", "score", "accept")
"""The stages in order; others follow them."""


def results(rows: Sequence[Row]) -> str:
    """Return the table of all rows, with errors and notes below it."""
    more = _more_equality(rows)
    at = HEAD.index("accepted")
    head = (*HEAD[:at], *(name for name, _ in more), *HEAD[at:])
    body = (
        (*cells[:at], *(_tokens(of(row)) for _, of in more), *cells[at:])
        for row, cells in ((row, _cells(row)) for row in rows)
    )
    lines = layout([head, *body])
    for row in rows:
        notes = [row.error] if row.error else row.notes
        if notes:
            lines.append(f"{_name(row)}: {'; '.join(notes)}")
    return "\n".join(lines)


def _name(row: Row) -> str:
    return f"{row.system}, batch {row.batch}, {_format(row)}, {_or(row.threads, '{}')} threads"


def _format(row: Row) -> str:
    """A row's number format, with that of its draft where one was asked for."""
    asked = row.draft_dtype not in (None, AUTO)
    return f"{row.dtype}, draft {row.draft_dtype}" if asked else row.dtype


def _cells(row: Row) -> tuple[str, ...]:
    head = (
        row.system,
        str(row.batch),
        _or(row.gamma, "{}"),
        _format(row),
        _or(row.threads, "{}"),
    )
    if row.error is not None or row.equality is None:
        return (*head, "failed", *["-"] * (len(HEAD) - len(head) - 1))
    same = row.equality
    return (
        *head,
        _or(row.wall_s, "{:.2f}"),
        _or(row.x_real_time, "{:.1f}"),
        _or(row.word_error_rate, "{:.2%}").removesuffix("%"),
        _tokens(same),
        f"{same.windows} of {same.windows_of}",
        _or(row.acceptance_rate, "{:.1%}"),
        _or(row.mean_acceptance_length, "{:.2f}"),
        _or(row.peak_bytes and row.peak_bytes / 1e6, "{:.0f}"),
    )


def _more_equality(rows: Sequence[Row]) -> list[tuple[str, Callable[[Row], Equality | None]]]:
    """The columns behind `equal windows`, of references other than a row's own."""
    columns: list[tuple[str, Callable[[Row], Equality | None]]] = []
    if any(row.system == OURS and row.dtype != FLOAT32 for row in rows):
        columns.append(("tokens as float32", lambda row: row.equality_float32))
    if any(row.equality_modules for row in rows):
        columns.append(("tokens as modules", lambda row: row.equality_modules))
    return columns


def _tokens(same: Equality | None) -> str:
    return "-" if same is None else f"{same.tokens} of {same.tokens_of}"


def stages(rows: Sequence[Row]) -> str:
    """Return the table of this engine's seconds by stage."""
    ours = [row for row in rows if row.system == OURS and row.stages_s]
    measured = {name for row in ours for name in row.stages_s}
    names = [name for name in STAGES if name in measured] + sorted(measured.difference(STAGES))
    body = [
        (
            _format(row),
            str(row.batch),
            _or(row.gamma, "{}"),
            *(_or(row.stages_s.get(name), "{:.2f}") for name in names),
            f"{sum(row.stages_s.values()):.2f}",
            _or(row.wall_s, "{:.2f}"),
        )
        for row in ours
    ]
    return "\n".join(layout([("dtype", "batch", "gamma", *names, "sum", "wall"), *body]))


def gains_table(ratios: Sequence[Ratio]) -> str:
    """Return what speculation gains at each batch size, in total and in decoding alone."""
    lines = []
    for ratio in ratios:
        row = ratio.row
        alone = _or(ratio.decoding, "{:.2f}x in decoding alone")
        lines.append(
            f"{_ours(row)}: {ratio.speed:.2f}x the speed of gamma 0, {alone} ({_same(row)})"
        )
    return "\n".join(lines)


def reductions_table(ratios: Sequence[Ratio]) -> str:
    """Return what a reduced dtype gains over float32 at each batch size, with tokens and error rates."""
    return "\n".join(
        f"{_ours(r.row)}: {r.speed:.2f}x the speed of {r.other.dtype}, gamma {r.other.gamma} "
        f"({_quality(r)})"
        for r in ratios
    )


def exact_table(ratios: Sequence[Ratio]) -> str:
    """Return this engine's speed relative to the fastest other system whose tokens are all equal."""
    lines = []
    for r in ratios:
        exact = r.row.dtype == FLOAT32
        same = "all tokens of both equal" if exact else _quality(r)
        lines.append(f"{_ours(r.row)}: {r.speed:.2f}x the speed of {_name(r.other)} ({same})")
    return "\n".join(lines)


def reduced_table(ratios: Sequence[Ratio], left_out: Sequence[Row]) -> str:
    """Return this engine's speed in a reduced dtype relative to the fastest other system in one, and the
    systems that were compared nowhere."""
    lines = [
        f"{_ours(r.row)}: {r.speed:.2f}x the speed of {_name(r.other)} ({_quality(r)})"
        for r in ratios
    ]
    if left_out:
        names = "; ".join(map(_name, left_out))
        lines.append(f"not compared, as they failed or their tokens differ: {names}")
    return "\n".join(lines)


def _ours(row: Row) -> str:
    return f"batch {row.batch}, gamma {row.gamma}, {_format(row)}"


def _same(row: Row) -> str:
    equal = row.equality is not None and row.equality.complete
    return "all tokens equal" if equal else "TOKENS DIFFER"


def _quality(ratio: Ratio) -> str:
    """The tokens of both rows that are those of float32, and their word errors."""
    both = (ratio.row, ratio.other)
    tokens = " and ".join(_tokens(row.equality_float32) for row in both)
    errors = " and ".join(_or(row.word_error_rate, "{:.2%}") for row in both)
    return f"tokens as float32: {tokens}; word errors: {errors}"


def _or(value: object, form: str) -> str:
    return "-" if value is None else form.format(value)
