"""Checks of the numbers in a request. Each raises RequestError with the name and the permitted values.

Knows numbers and sequences; nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from .errors import RequestError

INT64 = 2**63 - 1
ANY = float("inf")  # no upper bound, for numbers that are not stored in a tensor

# Well inside the range of float32: a logit that overflows would give NaN.
LARGEST = 1e6
HOTTEST = 1e30


def whole(
    name: str, value: Any, least: int, most: float = INT64, *, must: str | None = None
) -> None:
    """Checks for an integer from `least` to `most`; a bool is not one."""
    if isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= most:
        return
    bounds = f"{least} or more" if most >= INT64 else f"from {least} to {most}"
    raise RequestError(f"{name} is {_shown(value)}; it must be a whole number, {must or bounds}")


def real(name: str, value: Any, least: float, most: float, *, must: str) -> None:
    """Checks for a number from `least` to `most`; NaN and bools are refused."""
    if isinstance(value, Real) and not isinstance(value, bool) and least <= _float(value) <= most:
        return
    raise RequestError(f"{name} is {_shown(value)}; it must be {must}")


def tokens(name: str, values: Any) -> None:
    """Checks for a sequence of integers from 0 up."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise RequestError(f"{name} is {_shown(values)}; it must be a tuple of token ids")
    for value in values:
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 0:
            raise RequestError(f"{name} holds {_shown(value)}; a token id is a whole number from 0")


def text(name: str, value: Any) -> None:
    """Checks for a string that can be encoded: half of a surrogate pair has no bytes, so no tokens."""
    if not isinstance(value, str):
        raise RequestError(f"{name} is {_shown(value)}; it must be text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = value[error.start]
        raise RequestError(f"{name} holds {half!a}, half of a surrogate pair") from None


def in_vocabulary(name: str, values: Sequence[int], size: int) -> None:
    """Checks that all `values`, which passed `tokens`, are below the vocabulary's `size`."""
    if values and max(values) >= size:
        raise RequestError(f"{name} holds token {max(values)}; the model has {size} tokens")


def _float(value: Real) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond all floats
        return float("inf")


def _shown(value: object) -> str:
    """A short form: a client may send megabytes."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return f"an {type(value).__name__} too long to print"
    return text if len(text) <= 60 else f"{text[:57]}..."
