"""Words: a window's timed tokens to the words that a reader sees.

A word is what stands between spaces, the signs beside it included: "10:30", "$1,250", "well-known" are one
word each (openai/whisper parts them at their signs). A language without spaces has its characters
instead. Signs that nobody speaks have no share in a word's time, and no word reaches into a pause
beside it. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any

import numpy as np

from ..formats.transcript import SAMPLE_RATE, Word, Writer
from ..segment.pauses import Pause
from .timing import TokenTimes

SPACELESS = {"zh", "ja", "th", "lo", "my", "yue"}

OPENING = frozenset("\"'“‘¡¿([{-–—")
SILENT = OPENING | frozenset("”’.。,，!！?？:：;；)]}、…")
"""Signs that take no time: openai/whisper's, and a few more. Not "%" or "$", which are read aloud."""

SENTENCE_END = frozenset(".。!！?？")

LONGEST_S, TYPICAL = 0.7, 2.0
"""A word at the border of a sentence lasts at most twice the median word, and that at most 0.7 s
(openai/whisper): the path has to put a pause somewhere, and in noise no pause is seen. A number is
spoken longer than it is written, so it may last."""

REACH = (round(0.1 * SAMPLE_RATE), round(0.3 * SAMPLE_RATE))
"""A pause draws the border between two words to itself from as far as it is long, within these."""

GAP = round(0.3 * SAMPLE_RATE)
"""A word is drawn out over as much to the pause or the word beside it; further away somebody speaks who
was not written down."""


@dataclass(frozen=True)
class Timed:
    """A word in its window, in samples from the window's start."""

    text: str
    start: int
    end: int
    probability: float
    sources: tuple[Writer, ...] | None = None

    def __post_init__(self) -> None:
        assert 0 <= self.start <= self.end

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def last(self) -> str:
        """Its last sign."""
        return self.text.strip()[-1:]


def words(
    tokenizer: Any,
    language: str | None,
    segments: Sequence[tuple[Sequence[int], str]],
    times: TokenTimes,
    pauses: Sequence[Pause],
    offset: int,
    written: Sequence[Writer] | None = None,
) -> list[tuple[Word, ...]]:
    """The words of a window's segments, in samples of the recording, which the window enters at
    `offset`.

    `segments` are tokens with their text, in order; all their tokens joined are the timed ones, and
    those that `written` says the writers of. Words joined are the segment's text, and each lies in its
    window.
    """
    at, found, counts = 0, list[Timed](), list[int]()
    for tokens, whole in segments:
        spans = split(tokenizer, language, tokens)
        if "".join(span.text for span in spans) != whole:
            spans = [Span.of([(whole, len(tokens))])]  # broken characters: no border is certain
        for span in spans:
            sources = None if written is None else tuple(written[at : at + span.count])
            found.append(_timed(span, times, at, sources))
            at += span.count
        counts.append(len(spans))
    settled = iter(_shortened(_settled(found, pauses)))
    return [
        tuple(
            Word(
                word.text,
                offset + word.start,
                offset + word.end,
                word.probability,
                sources=word.sources,
            )
            for word in islice(settled, count)
        )
        for count in counts
    ]


# -- tokens to words ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """`count` tokens of a word; those from `first` to `last` (exclusive) are spoken."""

    text: str
    count: int
    first: int
    last: int

    @classmethod
    def of(cls, units: Sequence[tuple[str, int]]) -> Span:
        ends = [0, *np.cumsum([count for _, count in units]).tolist()]
        spoken = [n for n, (text, _) in enumerate(units) if not _silent(text)]
        first, last = (spoken[0], spoken[-1] + 1) if spoken else (0, len(units))
        while first and not units[first - 1][0].strip():
            first -= 1  # a space of its own belongs to the word that it begins
        return cls("".join(text for text, _ in units), ends[-1], ends[first], ends[last])


def split(tokenizer: Any, language: str | None, tokens: Sequence[int]) -> list[Span]:
    """The words of a text's tokens; all their tokens are those of the text, in order."""
    from transformers.models.whisper.tokenization_whisper import _split_tokens_on_unicode

    if not tokens:
        return []
    texts, groups, _ = _split_tokens_on_unicode(tokenizer, list(tokens))
    units = [(text, len(group)) for text, group in zip(texts, groups, strict=True)]
    starts = _seen if language in SPACELESS else _begins
    return [Span.of(word) for word in _joined(_cut(units, starts))]


def _begins(text: str) -> bool:
    return text[:1].isspace()


def _seen(text: str) -> bool:
    return bool(text.strip())


def _cut(
    units: Sequence[tuple[str, int]], starts: Callable[[str], bool]
) -> list[list[tuple[str, int]]]:
    """Units of whole characters as words: each begins where `starts` says so."""
    parts: list[list[tuple[str, int]]] = []
    for unit in units:
        if starts(unit[0]) or not parts:
            parts.append([])
        parts[-1].append(unit)
    return parts


def _joined(parts: Sequence[list[tuple[str, int]]]) -> list[list[tuple[str, int]]]:
    """Parts that are only signs go to the word before, those that open something to the next."""
    found: list[list[tuple[str, int]]] = []
    opened: list[tuple[str, int]] = []
    for part in parts:
        text = "".join(text for text, _ in part).strip()
        if _silent(text) and (opened or not found or text[-1:] in OPENING):
            opened += part
        elif _silent(text):
            found[-1] += part
        else:
            found.append([*opened, *part])
            opened = []
    if opened and found:
        found[-1] += opened
    return found or ([opened] if opened else [])


def _silent(text: str) -> bool:
    """Nothing but signs that nobody speaks, or nothing at all."""
    return SILENT.issuperset(text.strip())


def _timed(
    span: Span, times: TokenTimes, at: int, sources: tuple[Writer, ...] | None = None
) -> Timed:
    first, last = at + span.first, at + span.last
    start, end = times.boundaries[first], times.boundaries[last]
    chance = float(np.mean(times.probabilities[first:last]))
    return Timed(span.text, start, max(start, end), chance, sources)


# -- pauses -------------------------------------------------------------------------------------------


def _settled(found: Sequence[Timed], pauses: Sequence[Pause]) -> list[Timed]:
    """Words that end and begin where the pauses beside them say.

    In order before and behind: only borders between neighbours move, to both ends of one pause.
    """
    spans = [(word.start, word.end) for word in found]
    taken = set[int]()
    for pause in sorted(pauses, key=lambda p: -p.length):
        number = _border(found, spans, pause)
        if number is None or number in taken:
            continue
        taken.add(number)
        if number and pause.start - spans[number - 1][1] <= GAP:
            spans[number - 1] = (spans[number - 1][0], pause.start)
        if number < len(spans) and spans[number][0] - pause.end <= GAP:
            spans[number] = (pause.end, spans[number][1])
    spans = [_clipped(span, pauses) for span in spans]
    for number, (here, following) in enumerate(pairwise(spans)):
        between = Pause(here[1], following[0])
        if between.length <= GAP and not any(_overlap(between, p) for p in pauses):
            spans[number] = (here[0], following[0])
    return [
        replace(word, start=start, end=end) for word, (start, end) in zip(found, spans, strict=True)
    ]


def _border(found: Sequence[Timed], spans: Sequence[tuple[int, int]], pause: Pause) -> int | None:
    """The border that a pause is at: before word n, or behind all. None where it is within a word.

    Of those equally near, one behind a sign.
    """
    reach = min(max(pause.length, REACH[0]), REACH[1])
    best: tuple[int, bool, int] | None = None
    for number in range(len(spans) + 1):
        before = spans[number - 1] if number else (-1, pause.start)
        behind = spans[number] if number < len(spans) else (pause.end, pause.end + 1)
        if not (before[0] < pause.start and pause.end < behind[1]):
            continue  # a word would vanish
        distance = max(0, pause.start - behind[0], before[1] - pause.end)
        signed = number > 0 and found[number - 1].last in SILENT
        candidate = (distance, not signed, number)
        if distance <= reach and (best is None or candidate < best):
            best = candidate
    return None if best is None else best[2]


def _clipped(span: tuple[int, int], pauses: Sequence[Pause]) -> tuple[int, int]:
    """A word without the pauses that it begins or ends in; one that lies in a pause stays."""
    start, end = span
    for pause in pauses:
        if pause.start <= start < pause.end < end:
            start = pause.end
        if start < pause.start < end <= pause.end:
            end = pause.start
    return start, end


def _overlap(one: Pause, other: Pause) -> bool:
    return one.start < other.end and other.start < one.end


def _shortened(found: Sequence[Timed]) -> list[Timed]:
    """Words at the borders of sentences without the pause that fell to them."""
    lengths = [word.length for word in found if word.length]
    median = float(np.median(lengths)) if lengths else 0.0
    longest = round(min(LONGEST_S * SAMPLE_RATE, median) * TYPICAL)
    after_end, short = True, list[Timed]()
    for number, word in enumerate(found):
        ends = word.last in SENTENCE_END or number == len(found) - 1
        if longest and word.length > longest and not any(c.isdigit() for c in word.text):
            if after_end:
                word = replace(word, start=word.end - longest)
            elif ends:
                word = replace(word, end=word.start + longest)
        short.append(word)
        after_end = word.last in SENTENCE_END
    return short
