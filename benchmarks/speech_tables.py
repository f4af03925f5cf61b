"""The tables of `benchmarks.transcribe`. Knows rows; nothing of how they were measured. Import is light."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.rows import ACCEPTED, BATCH, WALL, WORD_ERRORS, Column, Row, remarks, table
from benchmarks.systems.jobs import FLOAT32, OURS


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


def name(row: Row) -> str:
    threads = "-" if row.threads is None else row.threads
    return f"{row.system}, batch {row.batch}, {number_format(row)}, {threads} threads"


def number_format(row: Row) -> str:
    """A row's number format, with that of its draft where one was asked for."""
    asked = row.draft_dtype not in (None, "auto")
    return f"{row.dtype}, draft {row.draft_dtype}" if asked else row.dtype
