"""Word borders: the rough word times of an alignment, moved to the pauses in the audio.

A word ends before a pause and the next word begins after it; words at the border of a sentence are
shortened where they are far longer than usual. The order of words does not change. Knows nothing of
tokens or models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..formats.transcript import SAMPLE_RATE, TokenSource
from ..segment.pauses import Pause
from .splitting import UNSPOKEN

SENTENCE_END = frozenset(".。!！?？")

LONGEST_S, TYPICAL = 0.7, 2.0
"""A word at the border of a sentence lasts at most twice the median word, and that median counts as at
most 0.7 s (openai/whisper): the alignment has to put a pause into some word, and in noise no pause is
found. Numbers are exempt: they take longer to say than their digits suggest."""

REACH = (round(0.1 * SAMPLE_RATE), round(0.3 * SAMPLE_RATE))
"""A pause moves the border between two words from as far away as the pause is long, within these."""

SHORTEST = round(0.02 * SAMPLE_RATE)
"""A word lasts at least a step of the alignment, whose path puts several tokens on one frame where there are
more tokens than frames, or where the attention is weak."""

GAP = round(0.3 * SAMPLE_RATE)
"""A word is extended over at most this much to the pause or the word next to it; a longer gap is speech
that was not transcribed."""


@dataclass(frozen=True)
class TimedWord:
    """A word in its window, in samples from the window's start."""

    text: str
    start: int
    end: int
    probability: float
    sources: tuple[TokenSource, ...] | None = None

    def __post_init__(self) -> None:
        assert 0 <= self.start <= self.end

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def last_character(self) -> str:
        return self.text.strip()[-1:]


class Span(NamedTuple):
    """Samples from the window's start, end exclusive."""

    start: int
    end: int


def aligned_with_pauses(words: Sequence[TimedWord], pauses: Sequence[Pause]) -> list[TimedWord]:
    """Words that end and begin at the pauses next to them.

    Only borders between neighbours move, each to both ends of one pause.
    """
    spans = _moved_borders([Span(word.start, word.end) for word in words], words, pauses)
    spans = [_without_pauses(span, pauses) for span in spans]
    spans = _without_gaps(spans, pauses)
    return [
        replace(word, start=span.start, end=span.end)
        for word, span in zip(words, spans, strict=True)
    ]


def _moved_borders(
    spans: list[Span], words: Sequence[TimedWord], pauses: Sequence[Pause]
) -> list[Span]:
    """Spans whose borders lie at pauses, the longest pauses first; each border moves once."""
    spans, moved = list(spans), set[int]()
    for pause in sorted(pauses, key=lambda pause: -pause.length):
        border = _nearest_border(spans, words, pause)
        if border is None or border in moved:
            continue
        moved.add(border)
        if border > 0 and pause.start - spans[border - 1].end <= GAP:
            spans[border - 1] = spans[border - 1]._replace(end=pause.start)
        if border < len(spans) and spans[border].start - pause.end <= GAP:
            spans[border] = spans[border]._replace(start=pause.end)
    return spans


def _nearest_border(spans: Sequence[Span], words: Sequence[TimedWord], pause: Pause) -> int | None:
    """The border that a pause belongs to: n is before word n, the last one behind all words.

    None where the pause lies within a word. Of borders at the same distance, one after punctuation.
    """
    reach = min(max(pause.length, REACH[0]), REACH[1])
    candidates = []
    for border in range(len(spans) + 1):
        distance = _distance(spans, border, pause)
        if distance is not None and distance <= reach:
            punctuated = border > 0 and words[border - 1].last_character in UNSPOKEN
            candidates.append((distance, not punctuated, border))
    return min(candidates)[2] if candidates else None


def _distance(spans: Sequence[Span], border: int, pause: Pause) -> int | None:
    """Samples from a pause to a border; None where moving the border would leave a word no time."""
    before = spans[border - 1] if border > 0 else Span(-1, pause.start)
    after = spans[border] if border < len(spans) else Span(pause.end, pause.end + 1)
    if pause.start <= before.start or after.end <= pause.end:
        return None
    return max(0, pause.start - after.start, before.end - pause.end)


def _without_pauses(span: Span, pauses: Sequence[Pause]) -> Span:
    """A word without the pauses that it begins or ends in; a word inside a pause stays."""
    start, end = span
    for pause in pauses:
        if pause.start <= start < pause.end < end:
            start = pause.end
        if start < pause.start < end <= pause.end:
            end = pause.start
    return Span(start, end)


def _without_gaps(spans: Sequence[Span], pauses: Sequence[Pause]) -> list[Span]:
    """Words extended to the next one, over short gaps without a pause."""
    closed = [
        span._replace(end=following.start) if _is_gap(span.end, following.start, pauses) else span
        for span, following in pairwise(spans)
    ]
    return [*closed, *spans[-1:]]


def _is_gap(start: int, end: int, pauses: Sequence[Pause]) -> bool:
    return end - start <= GAP and not any(p.start < end and start < p.end for p in pauses)


def shortened(words: Sequence[TimedWord]) -> list[TimedWord]:
    """Words at the borders of sentences without the pause that the alignment gave to them."""
    lengths = [word.length for word in words if word.length]
    median = float(np.median(lengths)) if lengths else 0.0
    longest = round(min(LONGEST_S * SAMPLE_RATE, median) * TYPICAL)
    after_end, result = True, list[TimedWord]()
    for number, word in enumerate(words):
        ends = word.last_character in SENTENCE_END or number == len(words) - 1
        if longest and word.length > longest and not any(c.isdigit() for c in word.text):
            if after_end:
                word = replace(word, start=word.end - longest)
            elif ends:
                word = replace(word, end=word.start + longest)
        result.append(word)
        after_end = word.last_character in SENTENCE_END
    return result


def apart(words: Sequence[TimedWord], length: int) -> list[TimedWord]:
    """Words in order, each of at least `SHORTEST` samples, which it takes from the words behind it, at the
    end of the window from those before it; less where `length` samples do not hold all words so."""
    least = min(SHORTEST, length // max(1, len(words)))
    spans, border = list[Span](), 0
    for word in words:
        start = max(word.start, border)
        border = max(word.end, start + least)
        spans.append(Span(start, border))
    result, border = list[TimedWord](), length
    for word, span in zip(reversed(words), reversed(spans), strict=True):
        end = min(span.end, border)
        border = min(span.start, end - least)
        result.append(replace(word, start=border, end=end))
    return result[::-1]
