"""The tables of `bench drafts`.

Knows rows and columns; computes no figures.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..columns import layout
from .draft_rows import DraftRow, Gamma, winners

HEAD = (
    "drafter",
    "batch",
    "gamma",
    "wall s",
    "x plain",
    "decoding x",
    "tokens/round",
    "draft ms",
    "price",
    "accepted",
    "equal tokens",
    "WER %",
)


def named(gamma: Gamma) -> str:
    """A draft length as the user writes it."""
    return "auto" if gamma is None else str(gamma)


def results(rows: Sequence[DraftRow]) -> str:
    """All rows, with errors and notes below them. The last column is left out where nothing has an error
    rate."""
    rated = any(row.word_error_rate is not None for row in rows)
    width = len(HEAD) if rated else len(HEAD) - 1
    lines = layout([HEAD[:width], *(_cells(row)[:width] for row in rows)])
    for row in rows:
        notes = [row.error] if row.error else list(row.notes)
        if notes:
            lines.append(f"{row.drafter}, batch {row.batch}: {'; '.join(notes)}")
    return "\n".join(lines)


def _cells(row: DraftRow) -> tuple[str, ...]:
    first = (row.drafter, str(row.batch), "-" if row.plain else named(row.gamma))
    if row.error is not None or row.equality is None:
        return (*first, "failed", *["-"] * (len(HEAD) - 4))
    return (
        *first,
        _or(row.wall_s, "{:.2f}"),
        _or(row.speed_up, "{:.2f}"),
        _or(row.decoding_speed_up, "{:.2f}"),
        _or(row.tokens_per_round, "{:.2f}"),
        _or(row.draft_ms, "{:.2f}"),
        _or(row.price, "{:.2f}"),
        _or(row.acceptance_rate, "{:.1%}"),
        f"{row.equality.tokens:,} of {row.equality.tokens_of:,}",
        _or(row.word_error_rate, "{:.2%}").removesuffix("%"),
    )


def depths(rows: Sequence[DraftRow]) -> str | None:
    """Acceptance by depth: of the drafts that were submitted, the share that was kept. None where nothing was
    drafted."""
    drafting = [row for row in rows if row.acceptance_at_depth]
    if not drafting:
        return None
    deepest = max(len(row.acceptance_at_depth) for row in drafting)
    head = ("accepted at depth", "batch", "gamma", *map(str, range(1, deepest + 1)))
    body = (
        (
            row.drafter,
            str(row.batch),
            named(row.gamma),
            *(f"{rate:.2f}" for rate in row.acceptance_at_depth),
            *["-"] * (deepest - len(row.acceptance_at_depth)),
        )
        for row in drafting
    )
    return "\n".join(layout([head, *body]))


def fastest(rows: Sequence[DraftRow]) -> str:
    """A line for each batch size."""
    return "\n".join(
        f"fastest at batch {row.batch}: {row.drafter}"
        + ("" if row.plain else f", gamma {named(row.gamma)}, {_or(row.speed_up, '{:.2f}')}x plain")
        for row in winners(rows)
    )


def _or(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
