"""What a checked record refuses, in the words of whoever wrote the value: lists, objects, whole numbers.

    except ValidationError as error:
        place, message = told(error.errors())       # "messages[0].content", "must be text"

pydantic names Python's types, and the branches of a union as parts of a place. Of several faults of one field
the innermost is told: what is wrong in an object comes after that it is no string. Import is light.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

TYPES: Mapping[str, str] = MappingProxyType(
    {
        "missing": "is missing",
        "none_required": "must be null",
        "string_type": "must be text",
        "string_sub_type": "must be text",
        "list_type": "must be a list",
        "tuple_type": "must be a list",
        "dict_type": "must be an object",
        "mapping_type": "must be an object",
        "model_type": "must be an object",
        "model_attributes_type": "must be an object",
        "int_type": "must be a whole number",
        "int_parsing": "must be a whole number",
        "int_from_float": "must be a whole number",
        "int_parsing_size": "must be a smaller whole number",
        "float_type": "must be a number",
        "float_parsing": "must be a number",
        "finite_number": "must be a finite number",
        "bool_type": "must be true or false",
        "bool_parsing": "must be true or false",
    }
)
"""Messages by pydantic's type of an error."""

WITH_FACTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = MappingProxyType(
    {
        "literal_error": lambda facts: f"must be {facts['expected']}",
        "union_tag_invalid": lambda facts: f"its type must be one of {facts['expected_tags']}",
        "union_tag_not_found": lambda facts: "needs its type",
        "greater_than": lambda facts: f"must be above {facts['gt']:g}",
        "greater_than_equal": lambda facts: f"must be at least {facts['ge']:g}",
        "less_than": lambda facts: f"must be below {facts['lt']:g}",
        "less_than_equal": lambda facts: f"must be at most {facts['le']:g}",
        "too_long": lambda facts: f"must have at most {facts['max_length']} entries",
        "too_short": lambda facts: _at_least(facts["min_length"], "entries"),
        "string_too_long": lambda facts: f"must have at most {facts['max_length']} characters",
        # The only pattern that there is.
        "string_pattern_mismatch": lambda facts: "must not be blank",
        "string_too_short": lambda facts: _at_least(facts["min_length"], "characters"),
    }
)
"""The same of those that a bound or a choice belongs to."""

ECHOED = frozenset({"int_parsing", "float_parsing", "bool_parsing", "literal_error"})
"""Errors whose value is shown: it is short, and never a secret."""

MAX_SHOWN = 60
"""Characters of a value that is shown."""

_BRANCH = re.compile(
    r"(str|int|float|bool|none|dict|constrained-\w+|[\w-]+\[.*|[A-Z]\w*|audio/.*|\w+_vad)"
)
"""Parts of a place that are a union's branches: types, names of records, and tags."""


def told(errors: Sequence[Any], known: Iterable[str] = ()) -> tuple[str, str]:
    """The place of the first wrong field, empty for the whole, and what is wrong with it. `known` are the
    fields, of which the nearest is named where one is unknown."""
    first = errors[0]
    of_field = [e for e in errors if e["loc"][:1] == first["loc"][:1]]
    parts = {id(e): _parts(e["loc"]) for e in of_field}
    deepest = max(len(found) for found in parts.values())
    inner = [e for e in of_field if len(parts[id(e)]) == deepest]
    same = [e for e in inner if parts[id(e)] == parts[id(inner[0])]]
    types = [TYPES[e["type"]] for e in same if TYPES.get(e["type"], "").startswith("must be ")]
    if len(same) > 1 and len(types) == len(same):  # a value of none of a union's types
        kinds = dict.fromkeys(text.removeprefix("must be ") for text in types)
        return place(same[0]["loc"]), f"must be {' or '.join(kinds)}"
    # In one branch the type was right.
    closest = next((e for e in same if e["type"] not in TYPES), same[0])
    return place(closest["loc"]), message(closest, known)


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
    text: str = TYPES.get(kind) or ""
    if kind in WITH_FACTS:
        text = WITH_FACTS[kind](error["ctx"])
    if not text:  # our own, or one of a rare type
        return str(error["msg"]).removeprefix("Value error, ").replace("Input should", "must", 1)
    given = repr(error.get("input"))
    return f"{text}, not {given}" if kind in ECHOED and len(given) <= MAX_SHOWN else text


def _parts(parts: Iterable[str | int]) -> list[str | int]:
    return [one for one in parts if isinstance(one, int) or not _BRANCH.fullmatch(one)]


def _at_least(count: int, what: str) -> str:
    return "must not be empty" if count == 1 else f"must have at least {count} {what}"
