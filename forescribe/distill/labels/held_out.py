"""Rows that training never sees: whole recordings where there are enough, else some rows of each kind.

Knows rows; nothing of models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from forescribe.asr.errors import UsageError

from .label_rows import LabelRow

SHARE = 0.15
MOST, LEAST = 48, 2
"""Held-out rows of a kind: more would make each evaluation slow, fewer say nothing."""

SOURCES = 7
"""Recordings from which on whole recordings are held out."""

ROWS, TOKENS = 12, 400
"""Rows and tokens of answers below which no draft can be trained."""


def split(rows: Sequence[LabelRow]) -> tuple[list[LabelRow], list[LabelRow]]:
    """The rows to train on and those that are held out, the same ones in every run.

    Raises UsageError for too little data.
    """
    tokens = sum(row.answered for row in rows)
    if len(rows) < ROWS or tokens < TOKENS:
        raise UsageError(
            f"too little to learn from: {len(rows)} answers of the target with {tokens} tokens, and at least "
            f"{ROWS} with {TOKENS} are needed; an hour of speech, or a thousand texts, is a good beginning"
        )
    held: list[LabelRow] = []
    for kind in dict.fromkeys(row.kind for row in rows):
        held += _held_out([row for row in rows if row.kind == kind])
    chosen = {id(row) for row in held}
    return [row for row in rows if id(row) not in chosen], held


def _held_out(rows: Sequence[LabelRow]) -> list[LabelRow]:
    wanted = min(MOST, max(LEAST, round(SHARE * len(rows))))
    whole = len({row.source for row in rows}) >= SOURCES

    def rank(row: LabelRow) -> str:
        # Texts of one source and those that begin alike stay together: a word's definition in training
        # would give its held-out one away.
        name = row.source if whole else f"{row.source}\0{row.tokens[: row.begin]}"
        return hashlib.sha256(name.encode(errors="replace")).hexdigest()

    ranked = sorted(rows, key=lambda row: (rank(row), row.tokens))
    return ranked[:wanted]
