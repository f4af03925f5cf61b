"""What a checked record refuses, and where, without the branches of a union that pydantic has in a place.

Of several faults of one field the innermost is told: what is wrong in an object comes after that it is no
string. Import is light.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ConfigDict

_BRANCH = re.compile(
    r"(str|int|float|bool|none|dict|constrained-\w+|[\w-]+\[.*|[A-Z]\w*|audio/.*|\w+_vad)"
)
"""Parts of a place that are a union's branches: types, names of records, and tags."""


class Frozen(BaseModel):
    """Values that clients give: what is unknown is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def told(errors: Sequence[Any], known: Iterable[str] = ()) -> tuple[str, str]:
    """The place of the first wrong field, empty for the whole, and what is wrong with it. `known` are the
    fields, of which the nearest is named where one is unknown."""
    of_field = [(place(e["loc"]), e) for e in errors if e["loc"][:1] == errors[0]["loc"][:1]]
    # In the branch of a union whose type was right something else is wrong.
    innermost, error = max(
        of_field, key=lambda one: (len(_parts(one[1]["loc"])), not one[1]["type"].endswith("_type"))
    )
    return innermost, message(error, known)


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
    if error["type"] == "extra_forbidden":
        return f"is not a field{nearest(str(error['loc'][-1]), known)}"
    return str(error["msg"]).removeprefix("Value error, ")


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of a message that a name is unknown; empty where none is like it."""
    close = get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"; did you mean {close[0]}?" if close else ""


def _parts(parts: Iterable[str | int]) -> list[str | int]:
    return [one for one in parts if isinstance(one, int) or not _BRANCH.fullmatch(one)]
