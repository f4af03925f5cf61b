"""Words: the tokens of segments to the words that a reader sees, with times that are moved to the pauses in
the audio.

A word is what stands between spaces, with the punctuation next to it: "10:30", "$1,250" and "well-known"
are one word each (openai/whisper splits them at their punctuation). In a language without spaces each
character is a word.

The alignment gives rough times. A word ends before a pause and the next word begins after it; words at the
border of a sentence are shortened where they are far longer than usual. The order of words does not change.
Punctuation that is not spoken has no share in a word's time. Pauses are the quiet parts of a window, found in
its log-mel features: finer than voice activity (10 ms instead of 32, and without its delay), and there where
nothing listened for a voice.

Knows tokens, text, times and features; nothing of models.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..formats.transcript_parts import SAMPLE_RATE, TokenSource, Word
from ..model.languages import SPACELESS
from ..model.tokens import WhisperTokens
from ..segment.windows import Run, runs_of

if TYPE_CHECKING:
    from torch import Tensor

    from .timing import TokenTimes

OPENING = frozenset("\"'“‘¡¿([{-–—")
UNSPOKEN = OPENING | frozenset("”’.。,，!！?？:：;；)]}、…")
"""Punctuation that takes no time: openai/whisper's, and a few more. Not "%" or "$", which are read
aloud."""

MARKS = string.punctuation + "…–—“”‘’¿¡"
"""What two forms of a word may differ in."""

BROKEN = "\ufffd"
"""In a text, in place of a part of a character."""

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

CLOSING = " \"'”’)]}»"
"""What may stand behind such a mark."""

LONGEST_S, TYPICAL = 0.7, 2.0
"""A word at the border of a sentence lasts at most twice the median word, and that median counts as at
most 0.7 s (openai/whisper): the alignment has to put a pause into some word, and in noise no pause is
found. Numbers are exempt: they take longer to say than their digits suggest."""

REACH = (round(0.1 * SAMPLE_RATE), round(0.3 * SAMPLE_RATE))
"""A pause moves the border between two words from as far away as the pause is long, within these."""

SHORTEST_WORD = round(0.02 * SAMPLE_RATE)
"""A word lasts at least a step of the alignment, whose path puts several tokens on one frame where there are
more tokens than frames, or where the attention is weak."""

NEAR = round(0.1 * SAMPLE_RATE)
"""Voice activity begins later than a voice, and ends earlier, by less than this."""

FARTHEST = round(2.0 * SAMPLE_RATE)
"""Words are moved no farther to a voice: where there is none so near, it was not heard."""

GAP = round(0.3 * SAMPLE_RATE)
"""A word is extended over at most this much to the pause or the word next to it; a longer gap is speech
that was not transcribed."""


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
        text, ends, spoken = "", [0], list[int]()
        for number, (part, count) in enumerate(units):
            text += part
            ends.append(ends[-1] + count)
            if not _is_unspoken(part):
                spoken.append(number)
        first, last = (spoken[0], spoken[-1] + 1) if spoken else (0, len(units))
        while first and not units[first - 1][0].strip():
            first -= 1  # a token that is only a space belongs to the word that it begins
        return cls(text, ends[-1], ends[first], ends[last])


def split_words(tokenizer: Any, language: str | None, tokens: Sequence[int]) -> list[WordTokens]:
    """The words of a text; their tokens joined are the tokens of the text."""
    if not tokens:
        return []
    parts: list[list[Unit]] = []
    for text, count in _characters(tokenizer, tokens):
        begins = text.strip() if language in SPACELESS else text[:1].isspace()
        if begins or not parts:
            parts.append([])
        parts[-1].append((text, count))
    return list(map(WordTokens.of, _with_punctuation(parts)))


def _characters(tokenizer: Any, tokens: Sequence[int]) -> list[Unit]:
    """Tokens in the smallest groups that end with whole characters (openai/whisper)."""

    def text(some: Sequence[int]) -> str:
        # As it is written: `decode` drops what looks like a timestamp.
        if isinstance(tokenizer, WhisperTokens):
            return tokenizer.text(some)
        found: str = tokenizer.decode(some, decode_with_timestamps=True)
        return found

    whole, units, group, offset = text(tokens), list[Unit](), list[int](), 0
    for token in tokens:
        group.append(token)
        part = text(group)
        at = offset + part.find(BROKEN)
        if BROKEN not in part or at >= len(whole) or whole[at] == BROKEN:
            units.append((part, len(group)))
            group, offset = [], offset + len(part)
    return units


def _is_unspoken(text: str) -> bool:
    """Whether a text is empty or consists of punctuation that is not spoken."""
    return UNSPOKEN.issuperset(text.strip())


def _with_punctuation(parts: Sequence[list[Unit]]) -> list[list[Unit]]:
    """Words from parts: parts of punctuation join the previous word, opening ones the next word."""
    words: list[list[Unit]] = []
    opening: list[Unit] = []
    for part in parts:
        text = "".join(text for text, _ in part).strip()
        if not _is_unspoken(text):
            words.append([*opening, *part])
            opening = []
        elif opening or not words or text[-1:] in OPENING:
            opening += part
        else:
            words[-1] += part
    if opening and words:
        words[-1] += opening
    return words or ([opening] if opening else [])


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
    voiced: Sequence[Run] = (),
) -> list[tuple[Word, ...]]:
    """The words of a window's segments, in samples of the recording; the window starts at `offset` and has
    `length` samples.

    `segments` are tokens with their text, in order. `times` and `sources` are of all their tokens
    joined; `pauses` may reach over the window's end; `voiced` is where a voice was heard, in samples of the
    recording, nothing where nobody listened. The words of a segment joined are its text, and each lies in its
    window and takes time.
    """
    position, words, counts = 0, list[_TimedWord](), list[int]()
    for tokens, text in segments:
        split = split_words(tokenizer, language, tokens)
        if "".join(word.text for word in split) != text:
            split = [WordTokens.of([(text, len(tokens))])]  # broken characters: borders are unknown
        for word in split:
            first, last = position + word.first, position + word.last
            start, end = times.boundaries[first], times.boundaries[last]
            probability = float(np.mean(times.probabilities[first:last]))
            own = None if sources is None else tuple(sources[position : position + word.count])
            words.append(_TimedWord(word.text, start, max(start, end), probability, own))
            position += word.count
        counts.append(len(split))
    inside = [Pause(p.start, min(p.end, length)) for p in pauses if p.start < length]
    _move_to_pauses(words, inside)
    _shorten(words)
    _move_to_voice(words, [(start - offset, end - offset) for start, end in voiced])
    _set_apart(words, length)
    timed = (
        Word(w.text, offset + w.start, offset + w.end, w.probability, sources=w.sources)
        for w in words
    )
    return [tuple(islice(timed, count)) for count in counts]


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
    if not len(decibels):
        return ()
    low, high = np.percentile(decibels, (5, 95))
    if high - low < LEAST_RANGE_DB:
        return ()
    runs = runs_of(decibels < low + QUIET * (high - low), HOP)
    return tuple(Pause(a, min(b, length)) for a, b in runs if b - a >= SHORTEST_PAUSE * HOP)


@dataclass
class _TimedWord:
    """A word in its window, in samples from the window's start."""

    text: str
    start: int
    end: int
    probability: float
    sources: tuple[TokenSource, ...] | None

    @property
    def last_character(self) -> str:
        return self.text.strip()[-1:]


def _move_to_pauses(words: Sequence[_TimedWord], pauses: Sequence[Pause]) -> None:
    """Have words end and begin at the pauses next to them, and extend each to the next one over a short gap
    without a pause. Only borders between neighbours move, each to both ends of one pause: the longest pauses
    first, each border once."""
    moved = set[int]()
    for pause in sorted(pauses, key=attrgetter("length"), reverse=True):
        border = _nearest_border(words, pause)
        if border is None or border in moved:
            continue
        moved.add(border)
        if border > 0 and pause.start - words[border - 1].end <= GAP:
            words[border - 1].end = pause.start
        if border < len(words) and words[border].start - pause.end <= GAP:
            words[border].start = pause.end
    for word in words:  # a word inside a pause stays
        for pause in pauses:
            if pause.start <= word.start < pause.end < word.end:
                word.start = pause.end
            if word.start < pause.start < word.end <= pause.end:
                word.end = pause.start
    for word, following in pairwise(words):
        between = any(p.start < following.start and word.end < p.end for p in pauses)
        if following.start - word.end <= GAP and not between:
            word.end = following.start


def _nearest_border(words: Sequence[_TimedWord], pause: Pause) -> int | None:
    """The border that a pause belongs to: n is before word n, the last one behind all words.

    None where the pause lies within a word. Of borders at the same distance, one after punctuation.
    """
    reach = min(max(pause.length, REACH[0]), REACH[1])
    candidates = []
    for border in range(len(words) + 1):
        before = words[border - 1] if border > 0 else None
        after = words[border] if border < len(words) else None
        # Moving the border would leave a word no time.
        if before is not None and pause.start <= before.start:
            continue
        if after is not None and after.end <= pause.end:
            continue
        late = 0 if after is None else pause.start - after.start
        early = 0 if before is None else before.end - pause.end
        distance = max(0, late, early)
        if distance <= reach:
            punctuated = before is not None and before.last_character in UNSPOKEN
            candidates.append((distance, not punctuated, border))
    return min(candidates)[2] if candidates else None


def _shorten(words: Sequence[_TimedWord]) -> None:
    """Take the pause that the alignment gave to words at the borders of sentences away from them."""
    lengths = [word.end - word.start for word in words if word.end > word.start]
    median = float(np.median(lengths)) if lengths else 0.0
    longest = round(min(LONGEST_S * SAMPLE_RATE, median) * TYPICAL)
    after_end = True
    for number, word in enumerate(words):
        ends = word.last_character in SENTENCE_END
        too_long = longest and word.end - word.start > longest
        if too_long and not any(map(str.isdigit, word.text)):
            if after_end:
                word.start = word.end - longest
            elif ends or number == len(words) - 1:
                word.end = word.start + longest
        after_end = ends


def _move_to_voice(words: Sequence[_TimedWord], voiced: Sequence[Run]) -> None:
    """Have words that lie where no voice is begin with the voice behind them, if they begin a sentence, the
    next word begins with it, or it is nearer than the voice before them: the alignment takes a breath for the
    first word. Such a word has at most half of the time up to the end of the next one."""
    for number in reversed(range(len(words)) if voiced else ()):
        word, following = words[number], words[number + 1 : number + 2]
        if any(a - NEAR < word.end and word.start < b + NEAR for a, b in voiced):
            continue
        place = min((a for a, _ in voiced if a >= word.end), default=math.inf)
        before = max((b for _, b in voiced if b <= word.start), default=-math.inf)
        begins = not number or words[number - 1].last_character in SENTENCE_END
        begins |= any(w.start - place <= GAP for w in following)
        near = begins or place - word.end <= word.start - before
        if place - word.end > FARTHEST or not near or any(w.end <= place for w in following):
            continue
        word.start, word.end = int(place), int(place) + word.end - word.start
        for after in following:
            word.end = min(word.end, max(after.start, (word.start + after.end) // 2))


def _set_apart(words: Sequence[_TimedWord], length: int) -> None:
    """Put words in order, each of at least `SHORTEST_WORD` samples, which it takes from the words behind it,
    at the end of the window from those before it; less where `length` samples do not hold all words so."""
    least, border = min(SHORTEST_WORD, length // max(1, len(words))), 0
    for word in words:
        word.start = max(word.start, border)
        border = word.end = max(word.end, word.start + least)
    border = length
    for word in reversed(words):
        word.end = min(word.end, border)
        border = word.start = min(word.start, word.end - least)
