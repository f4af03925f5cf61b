"""Printable text: untrusted text in a form that a terminal or a log may show.

The name of a file may hold line breaks and codes that move the cursor, change colours or reverse the
writing direction; printed unchanged, it could forge or hide a line. Such characters are escaped as in
Python; all others, in any script, are unchanged.
"""

from __future__ import annotations

import re

# Control characters, line and paragraph separators, direction marks, and lone surrogates, which stand
# for the bytes of a name that are not UTF-8.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Escape the characters of a text that could affect its display."""
    return _HIDDEN.sub(lambda match: _escaped(match[0]), text)


def one_line(text: str) -> str:
    """Join the lines of a text with spaces and escape it, for messages of libraries."""
    return visible(" ".join(filter(None, map(str.strip, text.splitlines()))))


def clipped(text: str, length: int) -> str:
    """A text of at most `length` characters; of a longer one the middle is left out, as messages name the
    culprit first and the advice last."""
    if len(text) <= length:
        return text
    tail = length // 4
    return f"{text[: length - tail - 3]} … {text[len(text) - tail :]}"


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"  # a byte
    return character.encode("unicode_escape").decode("ascii")
