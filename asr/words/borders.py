"""Word borders: a window's timed tokens to words with times, moved to the pauses in the audio.

The alignment gives rough times. A word ends before a pause and the next word begins after it; words at the
border of a sentence are _shortened where they are far longer than usual. The order of words does not change.
Punctuation that is not spoken has no share in a word's time.

Pauses are the quiet parts of a window, found in its log-mel features: finer than voice activity (10 ms
instead of 32, and without its delay), and available in both long-form modes.

Knows splitting, times and features; nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..formats.transcript_parts import SAMPLE_RATE, TokenSource, Word
from .splitting import UNSPOKEN, WordTokens, split_words
from .timing import TokenTimes

HOP = 160
"""Samples of a feature frame: 10 ms."""

SHORTEST_PAUSE = 10
"""Frames. A shorter quiet part may be the closure of a stop consonant."""

QUIET = 0.2
"""Quiet is the lowest fifth of the way, in dB, from a window's quietest frames (5th percentile) to its
loudest (95th). Measured on synthesised speech with known word times: a pause is found 13 ms late at
its beginning and 4 ms late at its end (medians), 19 of 20 within 40 ms; in noise 20 dB below the speech
it is found too short, never too long."""

LEAST_RANGE_DB = 12.0
"""With a smaller difference between quiet and loud frames, no pauses are reported."""

SENTENCE_END = frozenset(".。!！?？")
"""Marks at the end of a sentence."""

LONGEST_S, TYPICAL = 0.7, 2.0
"""A word at the border of a sentence lasts at most twice the median word, and that median counts as at
most 0.7 s (openai/whisper): the alignment has to put a pause into some word, and in noise no pause is
found. Numbers are exempt: they take longer to say than their digits suggest."""

REACH = (round(0.1 * SAMPLE_RATE), round(0.3 * SAMPLE_RATE))
"""A pause moves the border between two words from as far away as the pause is long, within these."""

SHORTEST_WORD = round(0.02 * SAMPLE_RATE)
"""A word lasts at least a step of the alignment, whose path puts several tokens on one frame where there are
more tokens than frames, or where the attention is weak."""

GAP = round(0.3 * SAMPLE_RATE)
"""A word is extended over at most this much to the pause or the word next to it; a longer gap is speech
that was not transcribed."""


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
    position, words, counts = 0, list[_TimedWord](), list[int]()
    for tokens, text in segments:
        split = split_words(tokenizer, language, tokens)
        if "".join(word.text for word in split) != text:
            split = [WordTokens.of([(text, len(tokens))])]  # broken characters: borders are unknown
        for word in split:
            own = None if sources is None else tuple(sources[position : position + word.count])
            words.append(_timed(word, times, position, own))
            position += word.count
        counts.append(len(split))
    timed = iter(_apart(_shortened(_aligned_with_pauses(words, pauses)), length))
    return [tuple(_shifted(word, offset) for word in islice(timed, count)) for count in counts]


class Pause(NamedTuple):
    """Samples from the window's start, end exclusive."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


def pauses(features: Tensor, length: int) -> tuple[Pause, ...]:
    """The pauses in the first `length` samples of a window, from its features `[M, F]`."""
    # Features are (log10 power + 4) / 4. The mean over bands, not the power: a hiss counts as speech.
    decibels = 40.0 * features.float().mean(0).cpu().numpy()[: -(-length // HOP)]  # [F]
    return tuple(Pause(a * HOP, min(b * HOP, length)) for a, b in _runs(_quiet(decibels)))


def within(pauses: Sequence[Pause], length: int) -> tuple[Pause, ...]:
    """The parts of pauses in the first `length` samples of a window."""
    return tuple(Pause(p.start, min(p.end, length)) for p in pauses if p.start < length)


@dataclass(frozen=True)
class _TimedWord:
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


class _Span(NamedTuple):
    """Samples from the window's start, end exclusive."""

    start: int
    end: int


def _aligned_with_pauses(words: Sequence[_TimedWord], pauses: Sequence[Pause]) -> list[_TimedWord]:
    """Words that end and begin at the pauses next to them.

    Only borders between neighbours move, each to both ends of one pause.
    """
    spans = _moved_borders([_Span(word.start, word.end) for word in words], words, pauses)
    spans = [_without_pauses(span, pauses) for span in spans]
    spans = _without_gaps(spans, pauses)
    return [
        replace(word, start=span.start, end=span.end)
        for word, span in zip(words, spans, strict=True)
    ]


def _shortened(words: Sequence[_TimedWord]) -> list[_TimedWord]:
    """Words at the borders of sentences without the pause that the alignment gave to them."""
    lengths = [word.length for word in words if word.length]
    median = float(np.median(lengths)) if lengths else 0.0
    longest = round(min(LONGEST_S * SAMPLE_RATE, median) * TYPICAL)
    after_end, result = True, list[_TimedWord]()
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


def _apart(words: Sequence[_TimedWord], length: int) -> list[_TimedWord]:
    """Words in order, each of at least `SHORTEST_WORD` samples, which it takes from the words behind it, at
    the end of the window from those before it; less where `length` samples do not hold all words so."""
    least = min(SHORTEST_WORD, length // max(1, len(words)))
    spans, border = list[_Span](), 0
    for word in words:
        start = max(word.start, border)
        border = max(word.end, start + least)
        spans.append(_Span(start, border))
    result, border = list[_TimedWord](), length
    for word, span in zip(reversed(words), reversed(spans), strict=True):
        end = min(span.end, border)
        border = min(span.start, end - least)
        result.append(replace(word, start=border, end=end))
    return result[::-1]


def _timed(
    word: WordTokens, times: TokenTimes, position: int, sources: tuple[TokenSource, ...] | None
) -> _TimedWord:
    """A word with the times of its spoken tokens; its first token is number `position`."""
    first, last = position + word.first, position + word.last
    start, end = times.boundaries[first], times.boundaries[last]
    probability = float(np.mean(times.probabilities[first:last]))
    return _TimedWord(word.text, start, max(start, end), probability, sources)


def _shifted(word: _TimedWord, offset: int) -> Word:
    return Word(
        word.text, offset + word.start, offset + word.end, word.probability, sources=word.sources
    )


def _quiet(decibels: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    if not len(decibels):
        return np.zeros(0, np.bool_)
    low, high = np.percentile(decibels, (5, 95))
    if high - low < LEAST_RANGE_DB:
        return np.zeros(len(decibels), np.bool_)
    return np.asarray(decibels < low + QUIET * (high - low))


def _runs(quiet: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Runs [start, end) of at least SHORTEST_PAUSE quiet frames."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], quiet, [False]]).astype(np.int8)))
    runs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [(a, b) for a, b in runs if b - a >= SHORTEST_PAUSE]


def _moved_borders(
    spans: list[_Span], words: Sequence[_TimedWord], pauses: Sequence[Pause]
) -> list[_Span]:
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


def _nearest_border(
    spans: Sequence[_Span], words: Sequence[_TimedWord], pause: Pause
) -> int | None:
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


def _distance(spans: Sequence[_Span], border: int, pause: Pause) -> int | None:
    """Samples from a pause to a border; None where moving the border would leave a word no time."""
    before = spans[border - 1] if border > 0 else _Span(-1, pause.start)
    after = spans[border] if border < len(spans) else _Span(pause.end, pause.end + 1)
    if pause.start <= before.start or after.end <= pause.end:
        return None
    return max(0, pause.start - after.start, before.end - pause.end)


def _without_pauses(span: _Span, pauses: Sequence[Pause]) -> _Span:
    """A word without the pauses that it begins or ends in; a word inside a pause stays."""
    start, end = span
    for pause in pauses:
        if pause.start <= start < pause.end < end:
            start = pause.end
        if start < pause.start < end <= pause.end:
            end = pause.start
    return _Span(start, end)


def _without_gaps(spans: Sequence[_Span], pauses: Sequence[Pause]) -> list[_Span]:
    """Words extended to the next one, over short gaps without a pause."""
    closed = [
        span._replace(end=following.start) if _is_gap(span.end, following.start, pauses) else span
        for span, following in pairwise(spans)
    ]
    return [*closed, *spans[-1:]]


def _is_gap(start: int, end: int, pauses: Sequence[Pause]) -> bool:
    return end - start <= GAP and not any(p.start < end and start < p.end for p in pauses)
