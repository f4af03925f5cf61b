"""Splitting: a text's tokens to the words that a reader sees.

A word is what stands between spaces, with the punctuation next to it: "10:30", "$1,250" and "well-known"
are one word each (openai/whisper splits them at their punctuation). In a language without spaces each
character is a word. Knows nothing of time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SPACELESS = {"zh", "ja", "th", "lo", "my", "yue"}

OPENING = frozenset("\"'“‘¡¿([{-–—")
UNSPOKEN = OPENING | frozenset("”’.。,，!！?？:：;；)]}、…")
"""Punctuation that takes no time: openai/whisper's, and a few more. Not "%" or "$", which are read
aloud."""

Unit = tuple[str, int]
"""The shortest text of whole characters, and how many tokens it has."""


@dataclass(frozen=True)
class WordTokens:
    """A word of `count` tokens; those from `first` to `last` (exclusive) are spoken."""

    text: str
    count: int
    first: int
    last: int

    @classmethod
    def of(cls, units: Sequence[Unit]) -> WordTokens:
        ends = [0, *np.cumsum([count for _, count in units]).tolist()]
        spoken = [n for n, (text, _) in enumerate(units) if not is_unspoken(text)]
        first, last = (spoken[0], spoken[-1] + 1) if spoken else (0, len(units))
        while first and not units[first - 1][0].strip():
            first -= 1  # a token that is only a space belongs to the word that it begins
        return cls("".join(text for text, _ in units), ends[-1], ends[first], ends[last])


def split_words(tokenizer: Any, language: str | None, tokens: Sequence[int]) -> list[WordTokens]:
    """The words of a text; their tokens joined are the tokens of the text."""
    from transformers.models.whisper.tokenization_whisper import _split_tokens_on_unicode

    if not tokens:
        return []
    texts, groups, _ = _split_tokens_on_unicode(tokenizer, list(tokens))
    units = [(text, len(group)) for text, group in zip(texts, groups, strict=True)]
    starts_word = _is_visible if language in SPACELESS else _begins_with_space
    return [WordTokens.of(word) for word in _with_punctuation(_cut(units, starts_word))]


def is_unspoken(text: str) -> bool:
    """Whether a text is empty or consists of punctuation that is not spoken."""
    return UNSPOKEN.issuperset(text.strip())


def _begins_with_space(text: str) -> bool:
    return text[:1].isspace()


def _is_visible(text: str) -> bool:
    return bool(text.strip())


def _cut(units: Sequence[Unit], starts_word: Callable[[str], bool]) -> list[list[Unit]]:
    parts: list[list[Unit]] = []
    for unit in units:
        if starts_word(unit[0]) or not parts:
            parts.append([])
        parts[-1].append(unit)
    return parts


def _with_punctuation(parts: Sequence[list[Unit]]) -> list[list[Unit]]:
    """Words from parts: parts of punctuation join the previous word, opening ones the next word."""
    words: list[list[Unit]] = []
    opening: list[Unit] = []
    for part in parts:
        text = "".join(text for text, _ in part).strip()
        if not is_unspoken(text):
            words.append([*opening, *part])
            opening = []
        elif opening or not words or text[-1:] in OPENING:
            opening += part
        else:
            words[-1] += part
    if opening and words:
        words[-1] += opening
    return words or ([opening] if opening else [])
