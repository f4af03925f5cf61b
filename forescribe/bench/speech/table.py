"""The tables of `bench transcribe`.

Knows rows and columns; computes no figures but ratios of speed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..columns import layout
from .result_rows import Row
from .systems.job import OURS

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
    lines = layout([HEAD, *map(_cells, rows)])
    for row in rows:
        notes = [row.error] if row.error else row.notes
        if notes:
            lines.append(f"{_name(row)}: {'; '.join(notes)}")
    return "\n".join(lines)


def _name(row: Row) -> str:
    return f"{row.system}, batch {row.batch}, {row.dtype}, {_or(row.threads, '{}')} threads"


def _cells(row: Row) -> tuple[str, ...]:
    head = (
        row.system,
        str(row.batch),
        _or(row.gamma, "{}"),
        row.dtype,
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
        f"{same.tokens} of {same.tokens_of}",
        f"{same.windows} of {same.windows_of}",
        _or(row.acceptance_rate, "{:.1%}"),
        _or(row.mean_acceptance_length, "{:.2f}"),
        _or(row.peak_bytes and row.peak_bytes / 1e6, "{:.0f}"),
    )


def stages(rows: Sequence[Row]) -> str:
    """Return the table of this engine's seconds by stage."""
    ours = [row for row in rows if row.system == OURS and row.stages_s]
    measured = {name for row in ours for name in row.stages_s}
    names = [name for name in STAGES if name in measured] + sorted(measured.difference(STAGES))
    body = [
        (
            str(row.batch),
            _or(row.gamma, "{}"),
            *(_or(row.stages_s.get(name), "{:.2f}") for name in names),
            f"{sum(row.stages_s.values()):.2f}",
            _or(row.wall_s, "{:.2f}"),
        )
        for row in ours
    ]
    return "\n".join(layout([("batch", "gamma", *names, "sum", "wall"), *body]))


def gains(rows: Sequence[Row]) -> str:
    """Return what speculation gains at each batch size, in total and in decoding alone."""
    ours = {(r.batch, r.gamma): r for r in rows if r.system == OURS and r.wall_s}
    lines = []
    for (batch, gamma), row in ours.items():
        plain = ours.get((batch, 0))
        if not gamma or plain is None or not plain.wall_s or not row.wall_s or not row.equality:
            continue
        same = "all tokens equal" if row.equality.complete else "TOKENS DIFFER"
        lines.append(
            f"gamma {gamma} at batch {batch}: {plain.wall_s / row.wall_s:.2f}x the speed of gamma 0, "
            f"{_decoding(plain) / _decoding(row):.2f}x in decoding alone ({same})"
        )
    return "\n".join(lines)


def against_peers(rows: Sequence[Row]) -> str:
    """Return this engine's speed at each batch size relative to the fastest other system.

    Only rows whose tokens are all those of plain decoding are compared; a system may use a smaller
    batch than this engine. Those that differ are named, as are those whose rows failed.
    """
    peers = [row for row in rows if row.system != OURS]
    equal = [row for row in peers if row.wall_s and row.equality and row.equality.complete]
    ours = [row for row in rows if row.system == OURS and row.equality and row.equality.complete]
    lines = []
    for batch in dict.fromkeys(row.batch for row in ours):
        fits = [row for row in equal if row.batch <= batch]
        best = min((row for row in ours if row.batch == batch), key=_wall)
        if fits:
            peer = min(fits, key=_wall)
            lines.append(
                f"batch {batch}, gamma {best.gamma}: {_wall(peer) / _wall(best):.2f}x the speed of "
                f"{_name(peer)} (all tokens of both equal)"
            )
    left_out = [_name(row) for row in peers if row not in equal]
    if left_out:
        lines.append(f"not compared, as they failed or their tokens differ: {'; '.join(left_out)}")
    return "\n".join(lines)


def _wall(row: Row) -> float:
    assert row.wall_s is not None
    return row.wall_s


def _decoding(row: Row) -> float:
    """Seconds after the encoder: admission with its cross-attention keys, and the rounds."""
    return sum(s for name, s in row.stages_s.items() if name not in ("features", "encode"))


def _or(value: object, form: str) -> str:
    return "-" if value is None else form.format(value)
