"""The tables of `benchmarks.transcribe`, and ratios: drafts against plain decoding, and this engine against
the fastest other systems.

Every ratio is between two rows, so that its equality and error rates stand beside it. Rows of one dtype are
compared with each other; those of a reduced one also with other systems in reduced precision. Knows rows;
nothing of how they were measured. Import is light.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.rows import ACCEPTED, BATCH, WALL, WORD_ERRORS, Column, Row, remarks, table
from benchmarks.systems.jobs import FLOAT32, MODULES, OURS


def results(rows: Sequence[Row]) -> str:
    """Return the table of all rows, with errors and notes below it."""
    reduced = any(row.system == OURS and row.dtype != FLOAT32 for row in rows)
    modules = any(row.equality_modules for row in rows)
    columns = [
        Column("system", lambda row: row.system),
        BATCH,
        Column("gamma", lambda row: row.gamma),
        Column("dtype", number_format),
        Column("threads", lambda row: row.threads),
        WALL,
        Column("x real time", lambda row: row.x_real_time, "{:.1f}"),
        WORD_ERRORS,
        Column("equal tokens", lambda row: row.equality),
        Column("equal windows", lambda row: row.equality and row.equality.in_windows),
        *([Column("tokens as float32", lambda row: row.equality_first)] if reduced else []),
        *([Column("tokens as modules", lambda row: row.equality_modules)] if modules else []),
        ACCEPTED,
        Column("mean length", lambda row: row.mean_acceptance_length, "{:.2f}"),
        Column("peak MB", lambda row: row.peak_bytes and row.peak_bytes / 1e6, "{:.0f}"),
    ]
    return "\n".join([*table(columns, rows), *remarks(rows, name)])


STAGES = ("features", "encode", "prefill", "draft", "score", "accept")
"""The stages in order; others follow them."""


def stages(rows: Sequence[Row]) -> str:
    """Return the table of this engine's seconds by stage."""
    ours = [row for row in rows if row.system == OURS and row.stages_s]
    known = {name for row in ours for name in row.stages_s}
    names = [name for name in STAGES if name in known] + sorted(known.difference(STAGES))

    def seconds(stage: str) -> Column:
        return Column(stage, lambda row: row.stages_s.get(stage), "{:.2f}")

    columns = [
        Column("dtype", number_format),
        BATCH,
        Column("gamma", lambda row: row.gamma),
        *map(seconds, names),
        Column("sum", lambda row: sum(row.stages_s.values()), "{:.2f}"),
        Column("wall", lambda row: row.wall_s, "{:.2f}"),
    ]
    return "\n".join(table(columns, ours))


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
        mine, theirs = self.row.decoding_s, self.other.decoding_s
        return theirs / mine if mine and theirs else None

    def record(self) -> dict[str, object]:
        """As JSON: both rows by their settings, and the ratios."""
        settings = ("system", "batch", "gamma", "dtype", "draft_dtype", "threads")
        return {
            "row": self.row.record(*settings),
            "other": self.other.record(*settings),
            "speed": self.speed,
            "decoding": self.decoding,
        }

    def line(self, other: str, remark: str) -> str:
        row = self.row
        return (
            f"batch {row.batch}, gamma {row.gamma}, {number_format(row)}: {self.speed:.2f}x the speed of "
            f"{other}{remark}"
        )

    @property
    def quality(self) -> str:
        """The tokens of both rows that are those of float32, and their word errors."""
        both = (self.row, self.other)
        tokens = " and ".join(_or(row.equality_first, "{}") for row in both)
        errors = " and ".join(_or(row.word_error_rate, "{:.2%}") for row in both)
        return f" (tokens as float32: {tokens}; word errors: {errors})"


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


def record(rows: Sequence[Row]) -> dict[str, object]:
    """All ratios as JSON."""
    every = (gains, reductions, against_exact, against_reduced)
    return {of.__name__: [ratio.record() for ratio in of(rows)] for of in every}


def lines(rows: Sequence[Row]) -> list[str]:
    """All ratios in words, a paragraph for each kind, and the systems that were compared nowhere."""
    kinds = [
        [
            r.line("gamma 0, ", f"{_or(r.decoding, '{:.2f}x in decoding alone')} ({_same(r.row)})")
            for r in gains(rows)
        ],
        [r.line(f"{r.other.dtype}, gamma {r.other.gamma}", r.quality) for r in reductions(rows)],
        [
            r.line(
                name(r.other),
                " (all tokens of both equal)" if r.row.dtype == FLOAT32 else r.quality,
            )
            for r in against_exact(rows)
        ],
        [r.line(name(r.other), r.quality) for r in against_reduced(rows)],
    ]
    if unused := left_out(rows):
        names = "; ".join(map(name, unused))
        kinds[-1].append(f"not compared, as they failed or their tokens differ: {names}")
    return ["\n".join(kind) for kind in kinds if kind]


def name(row: Row) -> str:
    threads = _or(row.threads, "{}")
    return f"{row.system}, batch {row.batch}, {number_format(row)}, {threads} threads"


def number_format(row: Row) -> str:
    """A row's number format, with that of its draft where one was asked for."""
    asked = row.draft_dtype not in (None, "auto")
    return f"{row.dtype}, draft {row.draft_dtype}" if asked else row.dtype


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


def _same(row: Row) -> str:
    equal = row.equality is not None and row.equality.complete
    return "all tokens equal" if equal else "TOKENS DIFFER"


def _or(value: object, form: str) -> str:
    return "-" if value is None else form.format(value)
