"""Subtitle lines: which words share a line, and which lines are shown together.

A block is what a viewer sees at once. Blocks and lines are cut at words, by the cheapest partition:
few blocks first, ends of sentences before ends of clauses before pauses before anywhere, even
lengths where all else is equal. Knows words and times, nothing of formats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ..errors import UsageError
from .transcript import SAMPLE_RATE, Segment, Transcript

LONG_PAUSE = 3 * SAMPLE_RATE
"""Samples of silence over which no block reaches (openai/whisper)."""

PAUSE = SAMPLE_RATE // 4

SENTENCE_ENDS = tuple(".?!…。！？؟۔।")
CLAUSE_ENDS = tuple(",;:،；：，、–—")
CLOSING = "\"')]}”’»›」』）"

# What an end costs, where a block costs 1: nothing after a sentence, less than a block after a
# clause or in a pause, more than a block in the midst of words.
CLAUSE_COST, PAUSE_COST, MIDST_COST = 0.4, 0.6, 1.2
UNEVEN_COST = 0.05
LINE_COST = 100.0
"""Lines in a block are as few as there can be, or a block could outgrow its number of lines."""


@dataclass(frozen=True)
class LineRules:
    """At most `width` characters and `words` words in a line, `count` lines at a time; None is no
    limit. A word longer than a line has one to itself. `highlight` underlines each word in turn.

    With `count`, blocks may reach over segments; without it they never do, and `words` alone means
    one line at a time. Raises UsageError for values that make no sense.
    """

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
                "--max-line-count says nothing without a line's size: give --max-line-width or "
                "--max-words-per-line too"
            )

    @property
    def plain(self) -> bool:
        """Whether segments are shown as they are."""
        return self == PLAIN

    @property
    def lines(self) -> float:
        """Lines at a time."""
        return self.count or (1 if self.words and self.width is None else math.inf)

    @property
    def capacity(self) -> float:
        """Of a line, as `Piece.size` counts."""
        return self.width or self.words or math.inf


PLAIN = LineRules()


@dataclass(frozen=True)
class Piece:
    """A word on a line: text without spaces at its ends, and whether one stands before it."""

    text: str
    spaced: bool
    start_sample: int
    end_sample: int


@dataclass(frozen=True)
class Block:
    """Lines that are shown together. `timed` says whether the words' times are their own."""

    lines: tuple[tuple[Piece, ...], ...]
    start_sample: int
    end_sample: int
    speaker: str | None = None
    timed: bool = True

    def text(self) -> tuple[str, list[tuple[int, int]]]:
        """The lines with a line break between, and where in it each word stands."""
        text, places = "", []
        for number, line in enumerate(self.lines):
            for index, piece in enumerate(line):
                text += "\n" * (number > 0 and index == 0) + " " * (piece.spaced and index > 0)
                places.append((len(text), len(text) + len(piece.text)))
                text += piece.text
        return text, places

    def words(self) -> list[Piece]:
        """All words, in order."""
        return [piece for line in self.lines for piece in line]


def blocks(transcript: Transcript, rules: LineRules) -> list[Block]:
    """The transcript's text in blocks, in the order of its segments; no word is lost."""
    spoken = sorted(
        (s for s in transcript.segments if s.text.strip()), key=lambda s: s.start_sample
    )
    return [
        Block(lines, lines[0][0].start_sample, lines[-1][-1].end_sample, run.speaker, run.timed)
        for run in _runs(spoken, rules)
        for lines in _laid_out(run, rules)
    ]


@dataclass
class _Run:
    """Words that may share a block."""

    pieces: list[Piece]
    speaker: str | None
    timed: bool = True


def _runs(segments: list[Segment], rules: LineRules) -> Iterator[_Run]:
    current: _Run | None = None
    for segment in segments:
        timed = list(_pieces(segment))
        if current is not None and (rules.count is None or not timed):
            yield current
            current = None
        if not timed:  # no times: the segment stays whole
            words = [
                Piece(word, True, segment.start_sample, segment.end_sample)
                for word in segment.text.split()
            ]
            yield _Run(words, segment.speaker, timed=False)
            continue
        for piece, speaker in timed:
            if current is not None and _parts(current, piece, speaker):
                yield current
                current = None
            current = current or _Run([], speaker)
            current.pieces.append(piece)
    if current is not None:
        yield current


def _parts(run: _Run, piece: Piece, speaker: str | None) -> bool:
    far = piece.start_sample - run.pieces[-1].end_sample > LONG_PAUSE
    return far or speaker != run.speaker


def _pieces(segment: Segment) -> Iterator[tuple[Piece, str | None]]:
    for word in segment.words or ():
        # A line break or a tab inside a word would be one in the subtitle.
        text = " ".join(word.text.split())
        if text:
            spaced = word.text[0].isspace()
            piece = Piece(text, spaced, word.start_sample, word.end_sample)
            yield piece, word.speaker or segment.speaker


def _laid_out(run: _Run, rules: LineRules) -> Iterator[tuple[tuple[Piece, ...], ...]]:
    """Blocks as lines of words."""
    ruler, count = _Ruler(run.pieces, rules), rules.lines if run.timed else math.inf
    for start, end in ruler.blocks(count) if count < math.inf else [(0, len(run.pieces))]:
        yield tuple(tuple(run.pieces[a:b]) for a, b in ruler.lines(start, end))


class _Ruler:
    """Measures words `start` to `end` (exclusive) of a run, and cuts them."""

    def __init__(self, pieces: list[Piece], rules: LineRules) -> None:
        self.pieces, self.rules = pieces, rules
        sizes = (len(piece.text) + piece.spaced for piece in pieces)
        self.upto = [0, *accumulate(sizes)]  # characters before each word
        self.after = [_end_cost(one, two) for one, two in pairwise(pieces)] + [0.0]

    def size(self, start: int, end: int) -> int:
        """Characters, or words where only these are limited."""
        if self.rules.width is None:
            return end - start
        return self.upto[end] - self.upto[start] - self.pieces[start].spaced

    def fits(self, start: int, end: int) -> bool:
        """On one line. A single word always does."""
        if self.rules.words is not None and end - start > self.rules.words:
            return False
        return end - start == 1 or self.size(start, end) <= self.rules.capacity

    def cost(self, start: int, end: int, each: float, capacity: float) -> float:
        """Of a block or a line, `each` for there being one more."""
        empty = 1 - min(1.0, self.size(start, end) / capacity)
        return each + self.after[end - 1] + UNEVEN_COST * empty * empty

    def lines(self, start: int, end: int) -> list[tuple[int, int]]:
        """The words of a block in lines."""
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
        """All words in blocks of at most `count` lines."""
        total = len(self.pieces)

        def ends(begin: int) -> Iterator[int]:
            """As many words as the lines hold, filled one after the other."""
            line, lines = begin, 1
            for last in range(begin + 1, total + 1):
                if not self.fits(line, last):
                    line, lines = last - 1, lines + 1
                    if lines > count:
                        return
                yield last

        capacity = self.rules.capacity * count
        return _partition(0, total, ends, lambda a, b: self.cost(a, b, 1.0, capacity))


def _end_cost(piece: Piece, following: Piece) -> float:
    text = piece.text.rstrip(CLOSING)
    if text.endswith(SENTENCE_ENDS):
        return 0.0
    if text.endswith(CLAUSE_ENDS):
        return CLAUSE_COST
    return PAUSE_COST if following.start_sample - piece.end_sample >= PAUSE else MIDST_COST


def _partition(
    first: int,
    last: int,
    ends: Callable[[int], Iterable[int]],
    cost: Callable[[int, int], float],
) -> list[tuple[int, int]]:
    """The cheapest cut of first..last into parts; `ends(start)` are where one that begins there may
    end, `start + 1` always among them. Linear in the words for parts of bounded length."""
    best = {first: 0.0}
    came: dict[int, int] = {}
    for start in range(first, last):
        for end in ends(start):
            price = best[start] + cost(start, end)
            if price < best.get(end, math.inf):
                best[end], came[end] = price, start
    cuts = [last]
    while cuts[-1] > first:
        cuts.append(came[cuts[-1]])
    return list(pairwise(cuts[::-1]))


__all__ = ["PLAIN", "Block", "LineRules", "Piece", "blocks"]
