"""Assembly: a window's timed tokens to the words of its segments.

Joins splitting, times and pauses. Punctuation that is not spoken has no share in a word's time. Knows
nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from ..formats.transcript import TokenSource, Word
from ..segment.pauses import Pause
from .splitting import WordTokens, split_words
from .timing import TokenTimes
from .word_borders import TimedWord, aligned_with_pauses, apart, shortened


def assemble_words(
    tokenizer: Any,
    language: str | None,
    segments: Sequence[tuple[Sequence[int], str]],
    times: TokenTimes,
    pauses: Sequence[Pause],
    offset: int,
    sources: Sequence[TokenSource] | None = None,
    *,
    length: int,
) -> list[tuple[Word, ...]]:
    """The words of a window's segments, in samples of the recording; the window starts at `offset` and has
    `length` samples.

    `segments` are tokens with their text, in order. `times` and `sources` are of all their tokens
    joined. The words of a segment joined are its text, and each lies in its window and takes time.
    """
    position, words, counts = 0, list[TimedWord](), list[int]()
    for tokens, text in segments:
        split = split_words(tokenizer, language, tokens)
        if "".join(word.text for word in split) != text:
            split = [WordTokens.of([(text, len(tokens))])]  # broken characters: borders are unknown
        for word in split:
            own = None if sources is None else tuple(sources[position : position + word.count])
            words.append(_timed(word, times, position, own))
            position += word.count
        counts.append(len(split))
    timed = iter(apart(shortened(aligned_with_pauses(words, pauses)), length))
    return [tuple(_shifted(word, offset) for word in islice(timed, count)) for count in counts]


def _timed(
    word: WordTokens, times: TokenTimes, position: int, sources: tuple[TokenSource, ...] | None
) -> TimedWord:
    """A word with the times of its spoken tokens; its first token is number `position`."""
    first, last = position + word.first, position + word.last
    start, end = times.boundaries[first], times.boundaries[last]
    probability = float(np.mean(times.probabilities[first:last]))
    return TimedWord(word.text, start, max(start, end), probability, sources)


def _shifted(word: TimedWord, offset: int) -> Word:
    return Word(
        word.text, offset + word.start, offset + word.end, word.probability, sources=word.sources
    )
