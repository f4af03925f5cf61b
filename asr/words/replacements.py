r"""Replacements: words that are to be written otherwise, wherever they are heard.

    koo bernetes => Kubernetes      words, whatever their case; capitals are kept where all is small here
    um =>                           nothing in their place
    /(\d+) percent/ => \1 %         a regular expression, as of the package `regex`

Words are whole ones. All of them are replaced in one pass, the longest first, so that no replacement is
replaced again; then the expressions, in their order. An expression has `LIMIT_S` for a segment. Import is
light.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..errors import UsageError
from .terms import LONGEST_TERM, broken, each_line

MOST_REPLACEMENTS, MOST_EXPRESSIONS = 10_000, 100
LONGEST_EXPRESSION = 1000
"""Characters."""

LIMIT_S = 0.5
"""Seconds that an expression may take for a segment."""

_LINE = re.compile(r"(/(?P<expression>.+)/|(?P<heard>.*?))\s*=>\s*(?P<meant>.*)")


_WHOLE = r"(?<!\w)(?<!\w['’-])(?<!\d[.,:])", r"(?!\w)(?!['’-](?!s\b)\w)(?![.,:]\d)"
"""A part of can't, 1,300 or well-known is no word; of Porter's it is."""

_LATIN = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True)
class Place:
    """Characters `start` to `end` of a text, and what is to be written there."""

    start: int
    end: int
    written: str


class Replacements:
    """Replacements, ready for use. Raises UsageError for lines that say none."""

    def __init__(self, lines: Sequence[str]) -> None:
        if isinstance(lines, str):
            raise UsageError("replacements is a text; give a list, a replacement in each entry")
        self.words: dict[str, str] = {}
        self.expressions: list[tuple[Any, str, str]] = []
        written = set[str]()  # a letter may be folded to two: ß

        def read(line: str) -> None:
            match = _LINE.fullmatch(line)
            if match is None or broken(line):
                left = "/expression/" if line.startswith("/") else "heard"
                raise UsageError(f"write '{left} => meant'")
            if match["expression"] is not None:
                self.expressions.append((*_compiled(match["expression"], match["meant"]), line))
                return
            heard = _folded(match["heard"])
            if not any(map(str.isalnum, heard)) or len(heard) > LONGEST_TERM:
                raise UsageError(f"give words to replace, of {LONGEST_TERM} characters at most")
            if self.words.setdefault(heard, match["meant"]) != match["meant"]:
                raise UsageError(f"another line writes {self.words[heard]!r}; keep one")
            written.add(" ".join(unicodedata.normalize("NFC", match["heard"]).split()))

        each_line(lines, read)
        if len(self.words) > MOST_REPLACEMENTS or len(self.expressions) > MOST_EXPRESSIONS:
            raise UsageError(
                f"{len(self.words):,} replacements and {len(self.expressions):,} expressions; at most "
                f"{MOST_REPLACEMENTS:,} and {MOST_EXPRESSIONS} are made"
            )
        forms = {*self.words, *written}
        self._pattern = {spaces: _pattern(forms, spaces) for spaces in (True, False)}

    @classmethod
    @lru_cache(maxsize=8)
    def of(cls, lines: tuple[str, ...]) -> Replacements:
        """Those of lines; the last few are kept. Raises UsageError."""
        return cls(lines)

    def places(self, text: str, *, spaces: bool = True) -> list[Place]:
        """Where the words of a text are replaced, in order. In a language without `spaces` words need not be
        whole."""

        def meant(match: re.Match[str]) -> str:
            meant = self.words.get(_folded(match[0]))  # None: re and Unicode fold it otherwise
            return match[0] if meant is None else _cased(meant, match[0])

        pattern = self._pattern[spaces]
        return [] if pattern is None else list(_places(pattern.finditer(text), meant))

    def places_by_expression(self, number: int, text: str) -> list[Place]:
        """Where the expression with this number replaces a text. Raises TimeoutError."""
        pattern, meant, _ = self.expressions[number]
        lead = len(text) - len(text.lstrip())
        found = pattern.finditer(text[lead:], timeout=LIMIT_S)
        return list(_places(found, lambda match: _CONTROLS.sub(" ", match.expand(meant)), lead))


def _places(found: Iterator[Any], written: Callable[[Any], str], lead: int = 0) -> Iterator[Place]:
    for match in found:
        new = written(match)
        if match[0] and new != match[0]:
            yield Place(match.start() + lead, match.end() + lead, new)


def _folded(words: str) -> str:
    return " ".join(unicodedata.normalize("NFC", words).casefold().split())


def _pattern(words: Collection[str], spaces: bool) -> re.Pattern[str] | None:
    """Without `spaces` words of Latin letters and numbers are whole ones, and others need not be."""
    if not words:
        return None
    forms = []
    for heard in sorted(words, key=len, reverse=True):
        form = r"\s+".join(map(re.escape, heard.split()))
        if not spaces:
            form = _LATIN[0] * heard[0].isascii() + form + _LATIN[1] * heard[-1].isascii()
        forms.append(form)
    before, behind = _WHOLE if spaces else ("", "")
    return re.compile(f"{before}(?:{'|'.join(forms)}){behind}", re.IGNORECASE)


def _cased(meant: str, heard: str) -> str:
    """With the capitals of what was heard, where none are given."""
    if meant != meant.lower() or not heard[:1].isupper():
        return meant
    if len(heard) > 1 and heard.isupper():
        return meant.upper()
    return meant[:1].upper() + meant[1:]


def _compiled(expression: str, meant: str) -> tuple[Any, str]:
    """The pattern, and what is written for it. Raises UsageError."""
    import regex  # type: ignore[import-untyped]  # types-regex is another package

    if len(expression) > LONGEST_EXPRESSION:
        raise UsageError(f"more than {LONGEST_EXPRESSION} characters")
    try:
        pattern = regex.compile(expression)
        pattern.sub(meant, "", timeout=LIMIT_S)  # an unknown group is found when it is used
        regex.compile(f"(?:{expression})|").fullmatch("").expand(meant)
    except (regex.error, IndexError, TimeoutError, OverflowError) as error:
        raise UsageError(str(error)) from error
    return pattern, meant
