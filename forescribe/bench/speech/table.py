"""The tables of `bench transcribe`.

Knows rows, ratios and columns; computes no figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..columns import layout
from ..equality import Equality
from .comparisons import Ratio
from .result_rows import Row
from .systems.job import FLOAT32, OURS

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


def gains(ratios: Sequence[Ratio]) -> str:
    """Return what speculation gains at each batch size, in total and in decoding alone."""
    lines = []
    for ratio in ratios:
        row = ratio.row
        alone = _or(ratio.decoding, "{:.2f}x in decoding alone")
        lines.append(
            f"{_ours(row)}: {ratio.speed:.2f}x the speed of gamma 0, {alone} ({_same(row)})"
        )
    return "\n".join(lines)


def reductions(ratios: Sequence[Ratio]) -> str:
    """Return what a reduced dtype gains over float32 at each batch size, with tokens and error rates."""
    return "\n".join(
        f"{_ours(r.row)}: {r.speed:.2f}x the speed of {r.other.dtype}, gamma {r.other.gamma} "
        f"({_quality(r)})"
        for r in ratios
    )


def against_exact(ratios: Sequence[Ratio]) -> str:
    """Return this engine's speed relative to the fastest other system whose tokens are all equal."""
    lines = []
    for r in ratios:
        exact = r.row.dtype == FLOAT32
        same = "all tokens of both equal" if exact else _quality(r)
        lines.append(f"{_ours(r.row)}: {r.speed:.2f}x the speed of {_name(r.other)} ({same})")
    return "\n".join(lines)


def against_reduced(ratios: Sequence[Ratio], left_out: Sequence[Row]) -> str:
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
