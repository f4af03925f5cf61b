"""Terms: words and phrases of one's own field, and the places of a text that are written or sound like them.

    Guinevere                   a term
    goo-nites => Kubernetes     how it is spoken, if that is not how it is written
    Rostov *2                   a weight: the larger, the less the model has to agree

A `TermList` finds candidates alone: whether one was spoken is for the model (`second_look`). Two forms are
alike by their letters and by their sound: the mean of two edit distances (optimal string alignment) is used,
one of the letters without case, accents, spaces and punctuation, one of these with what sounds alike as one
letter. Other scripts than Latin are compared by their letters alone. Import is light.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..errors import UsageError, clipped

MOST_TERMS = 10_000
"""Terms of a list: a window of 100 words is compared with them in 0.2 s of a core."""

LONGEST_TERM = 100
"""Characters of a term, and of how it is spoken."""

MOST_WEIGHT = 10.0

ALIKE = 0.62
"""How alike a term and what was written have to be. Of 73 terms of readers that whisper-base writes wrong 72
are, of 83 of tiny.en's 80, and of 1,000 other names 30 are in a reader's text; from 0.65 on 70, 79 and 20. By
Metaphone's codes in place of `ALIKE_LETTERS` 72, 79 and 30."""

ALIKE_LETTERS = tuple(
    pair.split(":")
    for pair in "ph:f th:t ck:k sh:s ce:se ci:si c:k q:k x:ks z:s v:f d:t b:p g:k y:i j:k w: h:".split()
)
"""Letters, and what stands for them in a comparison by sound."""

MOST_WORDS, MOST_CHARACTERS = 8, 12
"""Written words that may stand for one term, and characters in languages without spaces: with 3,000 terms 100
characters take 18 s and 600 MB for a window."""

CLOSING = ' .,;:!?…)]}»”"'
"""What may stand behind a word."""

POSSESSIVE = ("'s", "’s", "'", "’")

T = TypeVar("T")

_VOWELS, _DOUBLED = re.compile("[aeiou]+"), re.compile(r"(.)\1+")

_LINE = re.compile(
    r"(?:(?P<spoken>.*?)\s*=>\s*)?(?P<text>.*?)(?:\s\*\s?(?P<weight>\d+(?:\.\d+)?))?"
)


@dataclass(frozen=True)
class Term:
    """A term as it is to be written; `spoken` is how it is said, where that differs."""

    text: str
    spoken: str
    weight: float = 1.0


class Candidate(NamedTuple):
    """A term that may have been spoken where words `first` to `last` (exclusive) are written, whose letters
    are `form`. `ending` is the possessive that stays behind it."""

    first: int
    last: int
    term: Term
    likeness: float
    ending: str
    form: str


def read_terms(lines: Sequence[str]) -> tuple[Term, ...]:
    """The terms of lines. Raises UsageError."""
    if isinstance(lines, str):
        raise UsageError(
            f"terms is the text {clipped(lines, 40)!r}; give a list, a term in each entry"
        )
    terms = each_line(lines, _term)
    if len(terms) > MOST_TERMS:
        raise UsageError(
            f"{len(terms):,} terms; at most {MOST_TERMS:,} are looked for: keep those that these "
            "recordings may hold"
        )
    return tuple(dict.fromkeys(terms))


def lines_of(
    option: str, path: str | Path, check: Callable[[tuple[str, ...]], object]
) -> tuple[str, ...]:
    """The lines of a text file that `option` names. Raises UsageError for one that cannot be read or says
    nothing, and what `check` raises with the name of the file."""
    from ..formats.files import read_text

    lines = tuple(read_text(option, path).splitlines())
    if not any(map(says, lines)):
        raise UsageError(f"{option} {path} is empty; write one entry in each line")
    try:
        check(lines)
    except UsageError as error:
        raise UsageError(f"{option} {path}: {error}") from None
    return lines


def says(line: str) -> bool:
    """Whether a line of a list says anything: a blank one and one that begins with # do not."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def each_line(lines: Sequence[str], read: Callable[[str], T]) -> list[T]:
    """What `read` makes of each line that says anything. Raises one UsageError for all lines that are
    wrong."""
    found, wrong = list[T](), list[str]()
    for number, line in enumerate(lines, 1):
        try:
            if not isinstance(line, str):
                raise UsageError("it must be text")
            if says(line):
                found.append(read(line.strip()))
        except UsageError as error:
            wrong.append(f"line {number}, {clipped(repr(line), 60)}: {error}")
    if wrong:
        raise UsageError("; ".join(wrong))
    return found


def _term(line: str) -> Term:
    match = _LINE.fullmatch(line)
    if match is None or broken(line):
        raise UsageError("it holds what breaks or controls a line, or is not Unicode")
    text, weight = match["text"], float(match["weight"] or 1)
    spoken = text if match["spoken"] is None else match["spoken"]
    if max(len(text), len(spoken)) > LONGEST_TERM:
        raise UsageError(f"more than {LONGEST_TERM} characters; give the words that matter")
    if not letters(text) or not letters(spoken):
        raise UsageError("no letter and no digit; write a term, or 'spoken form => term'")
    if not 0 < weight <= MOST_WEIGHT:
        raise UsageError(f"the weight is {weight:g}; give more than 0, up to {MOST_WEIGHT:g}")
    return Term(text, spoken, weight)


def _plain(term: Term) -> Term | None:
    """A term without its possessive; None where it has none, or a form of its own in speech."""
    ending = next((e for e in POSSESSIVE if term.text.endswith(e)), None)
    if ending is None or term.spoken != term.text:
        return None
    text = term.text.removesuffix(ending)
    return Term(text, text, term.weight) if letters(text) else None


def letters(text: str) -> str:
    """Letters and digits, without case and accents; with the vowel signs and voicing marks of Asia."""
    marked = unicodedata.normalize("NFKD", text.casefold())
    return "".join(
        c for c in marked if c.isalnum() or (c >= "\u0900" and unicodedata.category(c)[0] == "M")
    )


def broken(text: str) -> bool:
    """Whether it holds what breaks or controls a line, or is not Unicode."""
    return any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in text.strip())


def _sound(written: str) -> str:
    """`letters`, those that sound alike as one, vowels as one, and doubled ones once."""
    for letters_here, stands in ALIKE_LETTERS:
        written = written.replace(letters_here, stands)
    return _DOUBLED.sub(r"\1", _VOWELS.sub("a", written))


class TermList:
    """Terms, prepared for comparison with the words of many windows."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self.terms = terms
        # A term in the possessive is looked for without it too: what was spoken decides.
        self._sought = (*terms, *(plain for term in terms if (plain := _plain(term)) is not None))
        self._letters = [letters(term.spoken) for term in self._sought]
        self._sounds = list(map(_sound, self._letters))
        self._written = [letters(term.text) for term in self._sought]
        self._plain = [
            None if (plain := _plain(term)) is None else letters(plain.text)
            for term in self._sought
        ]
        most = max((len(term.spoken.split()) for term in terms), default=0) + 1
        self._most, self._longest = (
            min(max(most, 3), MOST_WORDS),
            max(map(len, self._letters), default=0),
        )

    @classmethod
    @lru_cache(maxsize=8)
    def of(cls, lines: tuple[str, ...]) -> TermList:
        """That of lines; those of the last few lists are kept. Raises UsageError."""
        return cls(read_terms(lines))

    def candidates(self, words: Sequence[str], *, spaces: bool = True) -> list[Candidate]:
        """Where terms may have been spoken, the most alike first. In a language without `spaces` a word is a
        character."""
        from rapidfuzz import process
        from rapidfuzz.distance import OSA

        most = self._most if spaces else min(self._longest + 1, MOST_CHARACTERS)
        spans = list(_spans(words, most))
        if not spans or not self.terms:
            return []
        forms, compare = [form for *_, form in spans], OSA.normalized_similarity
        kwargs: dict[str, Any] = {"scorer": compare}
        by_sound = process.cdist(self._sounds, list(map(_sound, forms)), **kwargs)  # [T, S]
        alike = (process.cdist(self._letters, forms, **kwargs) + by_sound) / 2
        numbers = [*zip(*(alike >= ALIKE).nonzero(), strict=True)]
        right = [
            (*spans[span][:2], self._written[number])
            for number, span in numbers
            if spans[span][3] == self._written[number]
        ]
        found = list[Candidate]()
        for number, span in numbers:
            first, last, ending, form = spans[span]
            written, likeness = self._written[number], float(alike[number, span])
            plain = self._plain[number]
            if any(other == plain and a < last and first < b for a, b, other in right):
                continue  # its name is written, and that it is a possessive says nothing of this place
            # A term that is written already is left alone, unless it is a part of another one.
            if form == written or all(
                b <= first or last <= a or (other in written and other != written)
                for a, b, other in right
            ):
                found.append(Candidate(first, last, self._sought[number], likeness, ending, form))
        return sorted(found, key=lambda candidate: -candidate.likeness)


def _spans(words: Sequence[str], most: int) -> Iterator[tuple[int, int, str, str]]:
    """Up to `most` words in a row, by the first and the one behind the last, each with the possessive at
    their end that is left out, and the letters of the others."""
    for first in range(len(words)):
        text = ""
        for last in range(first + 1, min(first + most, len(words)) + 1):
            text += words[last - 1]
            core = text.strip().rstrip(CLOSING)
            for ending in ("", *(e for e in POSSESSIVE if core.endswith(e))):
                if form := letters(core.removesuffix(ending)):
                    yield first, last, ending, form
