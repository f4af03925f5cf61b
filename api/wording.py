"""What a checked record refuses, in the words of whoever wrote the value: lists, objects, null.

pydantic names Python's types, and the branches of a union as parts of a place. Of several faults of one field
the innermost is told: what is wrong in an object comes after that it is no string. Import is light.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

MESSAGES: Mapping[str, str] = MappingProxyType(
    {
        "missing": "is missing",
        "none_required": "must be null",
        "list_type": "must be a list",
        "tuple_type": "must be a list",
        "dict_type": "must be an object",
        "model_type": "must be an object",
        "model_attributes_type": "must be an object",
        "string_pattern_mismatch": "must not be blank",  # the only pattern that there is
    }
)
"""Messages by pydantic's type of an error, where its own names what only Python has."""

_SUBJECT = re.compile(r"(Input|String|List|Tuple|Dictionary) should ")

_BRANCH = re.compile(
    r"(str|int|float|bool|none|dict|constrained-\w+|[\w-]+\[.*|[A-Z]\w*|audio/.*|\w+_vad)"
)
"""Parts of a place that are a union's branches: types, names of records, and tags."""


def told(errors: Sequence[Any], known: Iterable[str] = ()) -> tuple[str, str]:
    """The place of the first wrong field, empty for the whole, and what is wrong with it. `known` are the
    fields, of which the nearest is named where one is unknown."""
    of_field = [(place(e["loc"]), e) for e in errors if e["loc"][:1] == errors[0]["loc"][:1]]
    innermost, _ = max(of_field, key=lambda found: len(_parts(found[1]["loc"])))
    faults = [error for where, error in of_field if where == innermost]
    # Where the type was right in one branch of a union, the others are of no interest.
    closest = [e for e in faults if not e["type"].endswith("_type")] or faults
    return innermost, " or ".join(dict.fromkeys(message(error, known) for error in closest))


def place(parts: Iterable[str | int]) -> str:
    """`messages[0].content`."""
    text = ""
    for part in _parts(parts):
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def field_of(place: str) -> str:
    """The field that a place is in: `messages`."""
    return re.split(r"[.\[]", place, maxsplit=1)[0]


def message(error: Any, known: Iterable[str] = ()) -> str:
    """What is wrong with one value."""
    kind = error["type"]
    if kind == "extra_forbidden":
        close = get_close_matches(str(error["loc"][-1]), known, n=1)
        return "is not a field" + (f"; did you mean {close[0]}?" if close else "")
    if kind in MESSAGES:
        return MESSAGES[kind]
    return _SUBJECT.sub("must ", str(error["msg"]).removeprefix("Value error, "), count=1)


def _parts(parts: Iterable[str | int]) -> list[str | int]:
    return [one for one in parts if isinstance(one, int) or not _BRANCH.fullmatch(one)]
