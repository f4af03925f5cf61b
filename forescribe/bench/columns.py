"""Rows of cells as a plain-text table.

Knows widths and alignment; nothing of the contents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def layout(lines: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table: the first column aligned left, others right, a rule below the
    head."""
    cells = [list(line) for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    out = []
    for line in cells:
        first, *rest = (c.rjust(w) if i else c.ljust(w) for i, (c, w) in _numbered(line, widths))
        out.append("  ".join([first, *rest]).rstrip())
    return [out[0], "-" * len(out[0]), *out[1:]]


def _numbered(line: list[str], widths: list[int]) -> Iterable[tuple[int, tuple[str, int]]]:
    return enumerate(zip(line, widths, strict=True))
