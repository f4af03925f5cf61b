"""Cues: the segments of a transcript as subtitles, in order and without overlaps.

Knows times and lines of text; nothing of file formats.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from .subtitles import PLAIN, LineRules, SubtitleBlock, split_into_blocks
from .transcript import SAMPLE_RATE, Transcript


@dataclass(frozen=True)
class Cue:
    """A subtitle: integer milliseconds, and text of one line or, with line rules, of several. `mark` is
    the underlined part of the text, `speaker` a name as `label` makes it. Raises ValueError unless
    start_ms < end_ms."""

    start_ms: int
    end_ms: int
    text: str
    speaker: str | None = None
    mark: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start_ms < self.end_ms:
            raise ValueError(f"cue runs from {self.start_ms} to {self.end_ms} ms")

    def marked(self, clean: Callable[[str], str]) -> str:
        """The text passed through `clean`, with the marked part between `<u>` and `</u>`."""
        if self.mark is None:
            return clean(self.text)
        start, end = self.mark
        before, word, after = self.text[:start], self.text[start:end], self.text[end:]
        return f"{clean(before)}<u>{clean(word)}</u>{clean(after)}"


def milliseconds(samples: int) -> int:
    """Round samples to milliseconds, halves up. All in integers: 59.9996 s is 60000 ms, never 59 s and
    1000 ms."""
    return (samples * 1000 + SAMPLE_RATE // 2) // SAMPLE_RATE


def cues(transcript: Transcript, rules: LineRules = PLAIN) -> list[Cue]:
    """Return the segments as subtitles, or their words arranged by `rules`: in order, start < end, no
    overlaps, none after the end of the audio.

    Whisper's timestamps guarantee none of this: they may touch, repeat, or point into the padding
    behind the audio. No text is lost: a segment without room for a cue is added to the cue before
    it."""
    if rules.plain:
        with_text = (segment for segment in transcript.segments if one_line(segment.text))
        parts = [
            _TimedText(s.start_sample, s.end_sample, one_line(s.text), s.speaker) for s in with_text
        ]
    else:
        parts = [_timed_text(block) for block in split_into_blocks(transcript, rules)]
    placed = _placed(parts, max(1, milliseconds(transcript.sample_count)))
    if not rules.highlight:
        return [cue for cue, _ in placed]
    return [cue for whole, part in placed for cue in _highlighted(whole, part)]


@dataclass(frozen=True)
class _TimedText:
    """The text of a cue before it is placed; `words` is empty unless every word has a time."""

    start_sample: int
    end_sample: int
    text: str
    speaker: str | None
    words: tuple[tuple[int, int, tuple[int, int]], ...] = ()  # start_ms, end_ms, place in the text


def _timed_text(block: SubtitleBlock) -> _TimedText:
    text, places = block.text()
    words = (
        (milliseconds(word.start_sample), milliseconds(word.end_sample), place)
        for word, place in zip(block.words(), places, strict=True)
    )
    timed = tuple(words) if block.timed else ()
    return _TimedText(block.start_sample, block.end_sample, text, block.speaker, timed)


def _placed(parts: list[_TimedText], limit: int) -> list[tuple[Cue, _TimedText]]:
    """Make cues of texts in any order, all before `limit` ms."""
    parts = sorted(parts, key=lambda part: part.start_sample)
    starts = [milliseconds(part.start_sample) for part in parts]
    following = [*starts[1:], limit][: len(starts)]
    result: list[tuple[Cue, _TimedText]] = []
    for part, raw_start, next_start in zip(parts, starts, following, strict=True):
        start = max(raw_start, result[-1][0].end_ms if result else 0)
        if start >= limit and result:
            cue, before = result[-1]
            result[-1] = replace(cue, text=f"{cue.text} {part.text}"), before
            continue
        start = min(start, limit - 1)
        end = min(milliseconds(part.end_sample), limit)
        if next_start > start:
            end = min(end, next_start)
        result.append((Cue(start, max(end, start + 1), part.text, label(part.speaker)), part))
    return result


def _highlighted(cue: Cue, part: _TimedText) -> Iterator[Cue]:
    """Repeat the cue for each word, which is marked while it is spoken."""
    at = cue.start_ms
    for start, end, place in part.words:
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
