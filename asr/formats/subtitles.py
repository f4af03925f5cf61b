"""Subtitles: the segments of a transcript as cues, in order and without overlaps, or their words in lines.

With `LineRules`, words are arranged in lines and blocks; a block is shown at once. Blocks and lines are cut
between words, at the lowest total cost: few blocks first, then cuts at ends of sentences, of clauses, in
pauses, elsewhere; then even lengths.

Knows words, times and lines of text; nothing of file formats.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import NamedTuple

from ..errors import UsageError
from .transcript_parts import SAMPLE_RATE, Contents, Segment, Word

UNNAMED = "Unknown speaker"
"""Who speaks where nobody was recognised, in a recording with speakers."""

LONG_PAUSE = 3 * SAMPLE_RATE
"""Samples of silence that always end a block (as in openai/whisper)."""

PAUSE = SAMPLE_RATE // 4
"""Samples of silence that are a good place to cut."""

SENTENCE_ENDS = tuple(".?!…。！？؟۔।")
CLAUSE_ENDS = tuple(",;:،；：，、–—")
CLOSING = "\"')]}”’»›」』）"

# The cost of a cut, if a block costs 1: nothing after a sentence, less than a block after a clause or
# in a pause, more than a block between other words.
CLAUSE_COST, PAUSE_COST, MIDST_COST = 0.4, 0.6, 1.2
UNEVEN_COST = 0.05
LINE_COST = 100.0
"""High, so that a block has as few lines as possible: else it could exceed its number of lines."""


@dataclass(frozen=True)
class LineRules:
    """At most `width` characters and `words` words per line, and `count` lines at a time; None is no
    limit. A word longer than a line is placed on a separate line. `highlight` underlines each word in turn.

    With `count`, blocks may span several segments; without it they never do, and `words` alone
    means one line at a time. Raises UsageError for values that are impossible."""

    width: int | None = None
    count: int | None = None
    words: int | None = None
    highlight: bool = False

    def __post_init__(self) -> None:
        for name, value in (("width", self.width), ("count", self.count), ("words", self.words)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise UsageError(f"a line rule's {name} is {value}; it must be 1 or more")
        if self.count is not None and self.width is None and self.words is None:
            raise UsageError(
                "--max-line-count has no effect without a line's size: give --max-line-width or "
                "--max-words-per-line too"
            )

    @property
    def plain(self) -> bool:
        """Whether segments are shown unchanged."""
        return self == PLAIN

    @property
    def lines(self) -> float:
        """Maximum lines at a time."""
        return self.count or (1 if self.words and self.width is None else math.inf)

    @property
    def capacity(self) -> float:
        """Maximum size of a line, in characters or words."""
        return self.width or self.words or math.inf


PLAIN = LineRules()

Times = tuple[tuple[int, int, tuple[int, int]], ...]
"""Of words: start and end in milliseconds, and the place in the text."""


@dataclass(frozen=True)
class Cue:
    """A subtitle: integer milliseconds, and text of one line or, with line rules, of several. `mark` is
    the underlined part of the text, `speaker` a name as `label` makes it; `words` is empty unless every word
    has a time."""

    start_ms: int
    end_ms: int
    text: str
    speaker: str | None = None
    mark: tuple[int, int] | None = None
    words: Times = ()

    def marked(self, clean: Callable[[str], str]) -> str:
        """The text passed through `clean`, with the marked part between `<u>` and `</u>`."""
        if self.mark is None:
            return clean(self.text)
        start, end = self.mark
        before, word, after = self.text[:start], self.text[start:end], self.text[end:]
        return f"{clean(before)}<u>{clean(word)}</u>{clean(after)}"


def cues(transcript: Contents, rules: LineRules = PLAIN) -> list[Cue]:
    """Return the segments as subtitles, or their words arranged by `rules`: in order, start < end, no
    overlaps, none after the end of the audio, each of one speaker.

    Whisper's timestamps guarantee none of this: they may touch, repeat, or point into the padding
    behind the audio. No text is lost: a segment without room for a cue is added to the cue before
    it if that is the same speaker's, and otherwise takes a millisecond of the cues before."""
    if rules.plain:
        parts = [part for segment in transcript.segments for part in _by_speaker(segment)]
    else:
        parts = list(_in_lines(transcript, rules))
    nobody = UNNAMED if any(label(part.speaker) for part in parts) else None
    parts = [replace(part, speaker=label(part.speaker) or nobody) for part in parts]
    placed = _placed(parts, max(1, milliseconds(transcript.sample_count)))
    if not rules.highlight:
        return placed
    return [cue for whole in placed for cue in _highlighted(whole)]


def label(speaker: str | None) -> str | None:
    """A speaker's name as line formats show it: in one line, without control characters; None where
    nothing is left. Names come from callers, and a line break in one would begin another cue."""
    text = "".join(
        " " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in speaker or ""
    )
    return " ".join(text.split()) or None


def one_line(text: str) -> str:
    """Join lines: a line break would end a cue, and a blank line would begin the next one."""
    return " ".join(part.strip() for part in text.splitlines() if part.strip())


def milliseconds(samples: int) -> int:
    """Round samples to milliseconds, halves up. All in integers: 59.9996 s is 60000 ms, never 59 s and
    1000 ms."""
    return (samples * 1000 + SAMPLE_RATE // 2) // SAMPLE_RATE


def _by_speaker(segment: Segment) -> Iterator[Cue]:
    """The text of a segment, cut before each word of another speaker than the word before it."""
    at, begin, start, speaker = 0, 0, segment.start_sample, segment.speaker
    end = start
    for number, word in enumerate(segment.words or ()):
        found = segment.text.find(word.text, at)
        if found < 0:  # words that are not those of the text
            continue
        who = word.speaker or segment.speaker
        if number and who != speaker and one_line(segment.text[begin:found]):
            yield _cue(start, max(start, end), one_line(segment.text[begin:found]), speaker)
            begin, start = found, word.start_sample
        speaker, at, end = who, found + len(word.text), word.end_sample
    if text := one_line(segment.text[begin:]):
        yield _cue(start, max(start, segment.end_sample), text, speaker)


def _cue(start: int, end: int, text: str, speaker: str | None, words: Times = ()) -> Cue:
    """A cue of samples, which may be anywhere."""
    return Cue(milliseconds(start), milliseconds(end), text, speaker, words=words)


def _placed(parts: list[Cue], limit: int) -> list[Cue]:
    """Cues in any order -> in order, without overlaps, all before `limit` ms."""
    parts = sorted(parts, key=attrgetter("start_ms"))
    following = [*(part.start_ms for part in parts[1:]), limit][: len(parts)]
    result: list[Cue] = []
    for part, next_start in zip(parts, following, strict=True):
        start = max(part.start_ms, result[-1].end_ms if result else 0)
        if start >= limit and result:
            cue = result[-1]
            if part.speaker == cue.speaker or not _make_room(result):
                result[-1] = replace(cue, text=f"{cue.text} {part.text}")
                continue
        start = min(start, limit - 1)
        end = min(part.end_ms, limit)
        if next_start > start:
            end = min(end, next_start)
        result.append(replace(part, start_ms=start, end_ms=max(end, start + 1)))
    return result


def _make_room(placed: list[Cue]) -> bool:
    """Free the last millisecond: the latest cue that has more than one gives one, and those after it begin
    earlier. False if none has."""
    for n in range(len(placed) - 1, -1, -1):
        if placed[n].end_ms - placed[n].start_ms > 1:
            placed[n:] = [
                replace(cue, start_ms=cue.start_ms - (m > 0), end_ms=cue.end_ms - 1)
                for m, cue in enumerate(placed[n:])
            ]
            return True
    return False


def _highlighted(cue: Cue) -> Iterator[Cue]:
    """Repeat the cue for each word, which is marked while it is spoken."""
    at = cue.start_ms
    for start, end, place in cue.words:
        start = min(max(start, at), cue.end_ms)
        end = min(end, cue.end_ms)
        if end <= start:
            continue
        if start > at:
            yield replace(cue, start_ms=at, end_ms=start)
        yield replace(cue, start_ms=start, end_ms=end, mark=place)
        at = end
    if at < cue.end_ms:
        yield replace(cue, start_ms=at)


class _Word(NamedTuple):
    """A word on a line: text without surrounding spaces; `spaced` if a space precedes it."""

    text: str
    spaced: bool
    start_sample: int
    end_sample: int


@dataclass
class _Run:
    """Words that may share a block. `timed` is whether each has a start and an end of its own."""

    words: list[_Word]
    speaker: str | None
    timed: bool = True

    def goes_on(self, word: Word, speaker: str | None) -> bool:
        """Whether a word may be the next one."""
        near = word.start_sample - self.words[-1].end_sample <= LONG_PAUSE
        return self.timed and near and speaker == self.speaker

    def cue(self, lines: Sequence[tuple[int, int]]) -> Cue:
        """The words of these lines, joined by line breaks."""
        text, words = "", []
        for begin, end in lines:
            text += "\n" if text else ""
            for n, word in enumerate(self.words[begin:end]):
                text += " " if word.spaced and n else ""
                place = (len(text), len(text) + len(word.text))
                span = (milliseconds(word.start_sample), milliseconds(word.end_sample))
                words.append((*span, place))
                text += word.text
        first, last = self.words[lines[0][0]], self.words[lines[-1][1] - 1]
        timed = tuple(words) if self.timed else ()
        return _cue(first.start_sample, last.end_sample, text, self.speaker, timed)


def _in_lines(transcript: Contents, rules: LineRules) -> Iterator[Cue]:
    """The text arranged in blocks of lines, in the order of the segments; no word is lost."""
    for run in _runs(transcript, rules):
        layout = _Layout(run.words, rules)
        count = rules.lines if run.timed else math.inf
        whole = [(0, len(run.words))]
        for start, end in whole if count == math.inf else layout.blocks(count):
            yield run.cue(layout.lines(start, end))


def _runs(transcript: Contents, rules: LineRules) -> list[_Run]:
    runs: list[_Run] = []
    with_text = (segment for segment in transcript.segments if segment.text.strip())
    for segment in sorted(with_text, key=attrgetter("start_sample")):
        timed = [word for word in segment.words or () if word.text.strip()]
        joins = rules.count is not None
        for word in timed:
            speaker = word.speaker or segment.speaker
            if not (joins and runs and runs[-1].goes_on(word, speaker)):
                runs.append(_Run([], speaker))
            # A line break or a tab inside a word would be one in the subtitle.
            text, spaced = " ".join(word.text.split()), word.text[0].isspace()
            runs[-1].words.append(_Word(text, spaced, word.start_sample, word.end_sample))
            joins = True
        if not timed:  # no times: the segment stays whole
            place = (segment.start_sample, segment.end_sample)
            words = [_Word(text, True, *place) for text in segment.text.split()]
            runs.append(_Run(words, segment.speaker, timed=False))
    return runs


class _Layout:
    """Sizes and cuts of the words `start` to `end` (exclusive) of a run."""

    def __init__(self, words: Sequence[_Word], rules: LineRules) -> None:
        self.words, self.rules = words, rules
        sizes = (len(word.text) + word.spaced for word in words)
        self.offsets = [0, *accumulate(sizes)]  # characters before each word
        self.cut_costs = [_end_cost(one, two) for one, two in pairwise(words)] + [0.0]

    def size(self, start: int, end: int) -> int:
        """The number of characters, or of words if only words are limited."""
        if self.rules.width is None:
            return end - start
        return self.offsets[end] - self.offsets[start] - self.words[start].spaced

    def fits(self, start: int, end: int) -> bool:
        """Whether the words fit on one line; a single word always does."""
        if self.rules.words is not None and end - start > self.rules.words:
            return False
        return end - start == 1 or self.size(start, end) <= self.rules.capacity

    def cost(self, start: int, end: int, each: float, capacity: float) -> float:
        """The cost of a block or a line; `each` is the cost of one more."""
        empty = 1 - min(1.0, self.size(start, end) / capacity)
        return each + self.cut_costs[end - 1] + UNEVEN_COST * empty * empty

    def lines(self, start: int, end: int) -> list[tuple[int, int]]:
        """Cut the words of a block into lines."""
        if self.rules.capacity == math.inf:
            return [(start, end)]

        def ends(begin: int) -> Iterator[int]:
            last = begin + 1
            while last <= end and self.fits(begin, last):
                yield last
                last += 1

        capacity = self.rules.capacity
        return _partition(start, end, ends, lambda a, b: self.cost(a, b, LINE_COST, capacity))

    def blocks(self, count: float) -> list[tuple[int, int]]:
        """Cut all words into blocks of at most `count` lines."""
        total = len(self.words)

        def ends(begin: int) -> Iterator[int]:
            """The possible ends: as many words as fit in the lines, filled one after the other."""
            line, lines = begin, 1
            for last in range(begin + 1, total + 1):
                if not self.fits(line, last):
                    line, lines = last - 1, lines + 1
                    if lines > count:
                        return
                yield last

        capacity = self.rules.capacity * count
        return _partition(0, total, ends, lambda a, b: self.cost(a, b, 1.0, capacity))


def _end_cost(word: _Word, following: _Word) -> float:
    text = word.text.rstrip(CLOSING)
    if text.endswith(SENTENCE_ENDS):
        return 0.0
    if text.endswith(CLAUSE_ENDS):
        return CLAUSE_COST
    return PAUSE_COST if following.start_sample - word.end_sample >= PAUSE else MIDST_COST


def _partition(
    first: int, last: int, ends: Callable[[int], Iterable[int]], cost: Callable[[int, int], float]
) -> list[tuple[int, int]]:
    """Cut first..last into parts at the lowest cost. `ends(start)` are the possible ends of a part,
    which include `start + 1`. Takes linear time for parts of bounded length."""
    best = {first: 0.0}
    previous: dict[int, int] = {}
    for start in range(first, last):
        for end in ends(start):
            price = best[start] + cost(start, end)
            if price < best.get(end, math.inf):
                best[end], previous[end] = price, start
    cuts = [last]
    while cuts[-1] > first:
        cuts.append(previous[cuts[-1]])
    return list(pairwise(cuts[::-1]))
