"""The first rows of a batch as rows of their own, on the same memory.

Knows tensors; nothing of slots or graphs.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

from torch import Tensor

from ..requests import Mode
from ..rows import Rows, SamplingRows

_Record = TypeVar("_Record", Rows, SamplingRows)


def first_rows(rows: Rows, count: int, mode: Mode, reach: int) -> Rows:
    """Rows `0 .. count - 1` with a mode and a reach of their own. A round of them changes `rows`."""
    view = _sliced(rows, count)
    view.sampling, view.mode, view.reach = _sliced(rows.sampling, count), mode, reach
    return view


def _sliced(record: _Record, count: int) -> _Record:
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    views: dict[str, Any] = {
        name: value[:count] for name, value in values.items() if isinstance(value, Tensor)
    }
    return replace(record, **views)
