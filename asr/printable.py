"""Visible: text from outside, as a terminal or a log may show it.

A file's name may hold line breaks, and codes that move the cursor, change colours or reverse the
direction of writing: printed as it is, it could forge a line of ours or hide one. Such characters are
written as Python writes them; all others, in any script, stay.
"""

from __future__ import annotations

import re

# Controls, line and paragraph separators, marks of direction, and halves of surrogate pairs: how
# Python holds the bytes of a name that are no UTF-8.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    """On one line, and without effect on what shows it."""
    return _HIDDEN.sub(lambda found: _escaped(found[0]), text)


def one_line(text: str) -> str:
    """The same, with its lines joined by a space: for messages of libraries, which may have several."""
    return visible(" ".join(filter(None, map(str.strip, text.splitlines()))))


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"  # a byte
    return character.encode("unicode_escape").decode("ascii")
