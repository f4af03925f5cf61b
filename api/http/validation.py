"""JSON and text from clients, checked in one place before anything else uses them.

    body = loads(data, "body")                  # ApiError 400 for anything that is wrong
    label = text(name, "filename")

Python's parser accepts more than JSON and fails in more ways than `JSONDecodeError`: nesting raises
RecursionError, a long integer ValueError, `1e999` becomes infinite, and an escaped half of a surrogate pair
becomes text that cannot be encoded. Does not know what the values mean.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from ..errors import ApiError

MAX_DEPTH = 32
"""Levels of nesting. The contracts here need at most five."""

MAX_MARKS = 150_000
"""Commas and opening brackets in a text, a bound of the number of its values: a prompt of tokens for a
context of 131,072 fits. Five million empty lists took 11 s, in which no other request was answered."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def loads(data: str | bytes, param: str) -> Any:
    """Parse JSON. Raises ApiError `invalid_value`."""
    if isinstance(data, str):
        marks = sum(data.count(mark) for mark in ",[{")
    else:
        marks = sum(data.count(mark) for mark in (b",", b"[", b"{"))
    if marks > MAX_MARKS:
        raise _refused(param, f"JSON with more than {MAX_MARKS} values")
    try:
        value = json.loads(data, parse_constant=_no_constant)
    except RecursionError:
        raise _refused(param, f"JSON nested deeper than {MAX_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        raise _refused(param, f"invalid JSON ({error.msg})") from error
    except ValueError as error:  # not UTF-8, a number of thousands of digits, NaN
        raise _refused(
            param, "invalid JSON (a character or a number that is not allowed)"
        ) from error
    _check(value, param)
    return value


def text(value: str, param: str) -> str:
    """The text, if it can be stored and sent. Raises ApiError `invalid_value`."""
    if "\0" in value:
        raise _refused(param, "text with a NUL character")
    if _SURROGATE.search(value):
        raise _refused(param, "text with half of a surrogate pair")
    return value


def label(name: str, max_length: int = 255) -> str | None:
    """A name for people, as it can be stored and shown; None if nothing of it is left."""
    kept = "".join(c for c in name if c.isprintable() and not _SURROGATE.match(c))
    return kept[:max_length].strip() or None


def whole(text: str, maximum: int) -> int | None:
    """A number from 0 to `maximum` in ASCII digits; None for anything else."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(maximum))):
        return None
    number = int(text)
    return number if number <= maximum else None


def _check(root: Any, param: str) -> None:
    """Check all values. Iterative, because they may be nested as deeply as the parser allows."""
    pending = [(root, 1)]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, str):
            text(value, param)
        elif isinstance(value, float) and not math.isfinite(value):
            raise _refused(param, "a number that is too large")
        elif isinstance(value, dict | list):
            if depth > MAX_DEPTH:
                raise _refused(param, f"JSON nested deeper than {MAX_DEPTH} levels")
            children = value if isinstance(value, list) else [*value, *value.values()]
            pending += [(child, depth + 1) for child in children]


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _refused(param: str, reason: str) -> ApiError:
    return ApiError("invalid_value", f"{param}: {reason}", param=param)
