"""Columns: lines of cells as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def layout(lines: Iterable[Sequence[str]]) -> list[str]:
    """Columns of equal width: the first to the left, figures to the right; a rule below the head."""
    cells = [list(line) for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    out = []
    for line in cells:
        first, *rest = (c.rjust(w) if i else c.ljust(w) for i, (c, w) in _numbered(line, widths))
        out.append("  ".join([first, *rest]).rstrip())
    return [out[0], "-" * len(out[0]), *out[1:]]


def _numbered(line: list[str], widths: list[int]) -> Iterable[tuple[int, tuple[str, int]]]:
    return enumerate(zip(line, widths, strict=True))
