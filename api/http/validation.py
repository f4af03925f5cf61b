"""JSON and text from clients, checked in one place before anything else reads them.

    body = loads(data, "body")                  # ApiError 400 for whatever is wrong with it
    label = text(name, "filename")

Python's parser accepts more than JSON and fails in more ways than `JSONDecodeError`: nesting raises
RecursionError, an integer of many digits ValueError, `1e999` becomes infinite, and an escaped half of a
surrogate pair becomes text that cannot be encoded again. Knows nothing of what the values mean.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from ..errors import ApiError

DEEPEST = 32
"""Levels of nesting. No contract here needs more than five."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def loads(data: str | bytes, param: str) -> Any:
    """The value of a JSON text. Raises ApiError `invalid_value`."""
    try:
        found = json.loads(data, parse_constant=_no_constant)
    except RecursionError:
        raise _refused(param, f"JSON nested deeper than {DEEPEST} levels") from None
    except json.JSONDecodeError as error:
        raise _refused(param, f"no JSON ({error.msg})") from error
    except ValueError as error:  # no UTF-8, a number of thousands of digits, NaN
        raise _refused(param, "no JSON (a character or a number that it has not)") from error
    _check(found, param)
    return found


def text(value: str, param: str) -> str:
    """The text, if it can be stored and sent again. Raises ApiError `invalid_value`."""
    if "\0" in value:
        raise _refused(param, "text with a NUL character")
    if _SURROGATE.search(value):
        raise _refused(param, "text with half of a surrogate pair")
    return value


def label(name: str, most: int = 255) -> str | None:
    """What people call something, as it may be stored and shown; None where nothing is left of it."""
    kept = "".join(c for c in name if c.isprintable() and not _SURROGATE.match(c))
    return kept[:most].strip() or None


def whole(given: str, most: int) -> int | None:
    """A number from 0 to `most` in ASCII digits; None for anything else, however long."""
    if not (given.isascii() and given.isdecimal() and len(given) <= len(str(most))):
        return None
    number = int(given)
    return number if number <= most else None


def _check(found: Any, param: str) -> None:
    """Without recursion, since the value may be nested as deeply as the parser can."""
    waiting = [(found, 1)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, str):
            text(value, param)
        elif isinstance(value, float) and not math.isfinite(value):
            raise _refused(param, "a number that is too large")
        elif isinstance(value, dict | list):
            if depth > DEEPEST:
                raise _refused(param, f"JSON nested deeper than {DEEPEST} levels")
            inside = value if isinstance(value, list) else [*value, *value.values()]
            waiting += [(one, depth + 1) for one in inside]


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _refused(param: str, reason: str) -> ApiError:
    return ApiError("invalid_value", f"{param}: {reason}", param=param)
