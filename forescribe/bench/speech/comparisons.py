"""Ratios of speed: drafts against plain decoding, and this engine against the fastest other systems.

Every ratio is between two rows, so that its equality and error rates stand beside it. Rows of one dtype are
compared with each other; those of a reduced one also with other systems in reduced precision. Knows rows;
nothing of how they are printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .result_rows import Row
from .systems.job import FLOAT32, MODULES, OURS


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
