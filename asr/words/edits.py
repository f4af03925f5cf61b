"""Edits: other words in place of those of an answer, with what was there before.

Tokens, log-probabilities and sources change together, so that words, their times and everything else that is
made of an answer follow. `replaced` makes those of replacements; terms are for the model (`second_look`).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from forescribe.speculative.requests import Result, Source

from ..formats.transcript_parts import CorrectionSource
from ..model.languages import SPACELESS
from ..model.whisper import Whisper
from .assembly import WordTokens, split_words
from .replacements import Place, Replacements


class Edit(NamedTuple):
    """`tokens` in place of `instead` tokens from position `at` on, and their log-probabilities. Behind
    `indent` characters, in which nothing has changed, `written` stands in place of `heard`."""

    at: int
    instead: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    indent: int
    heard: str
    written: str
    source: CorrectionSource

    @property
    def end(self) -> int:
        return self.at + self.instead

    @property
    def longer(self) -> int:
        return len(self.tokens) - self.instead


class Change(NamedTuple):
    """Where an edit is in a window: behind `first` text tokens, and `indent` characters of the next, over
    so many `tokens`."""

    first: int
    indent: int
    heard: str
    written: str
    source: CorrectionSource
    tokens: int = 1


def edited(
    result: Result, edits: Sequence[Edit], end: int, before: Sequence[Change] = ()
) -> tuple[Result, tuple[Change, ...]]:
    """The answer with `edits`, which do not overlap, and all changes in order: those `before` too, but for
    what the edits replace. Text tokens are those below `end`."""
    edits = sorted(edits)
    tokens, logprobs = list(result.tokens), list(result.logprobs)
    sources = list(result.sources)
    for edit in reversed(edits):
        place = slice(edit.at, edit.end)
        tokens[place], logprobs[place] = edit.tokens, edit.logprobs
        sources[place] = [Source.PLAIN] * len(edit.tokens)
    places = [position for position, token in enumerate(result.tokens) if token < end]
    places.append(len(result.tokens))  # behind the last one, where words are gone
    changes, longer = list[Change](), 0
    for edit in edits:
        first = sum(place < edit.at for place in places) + longer
        changes.append(Change(first, *edit[4:], len(edit.tokens)))
        longer += edit.longer
    for change in before:
        at, last = places[change.first], places[min(change.first + change.tokens, len(places) - 1)]
        if not any(edit.at < max(last, at + 1) and at < edit.end for edit in edits):
            moved = sum(edit.longer for edit in edits if edit.end <= at)
            changes.append(change._replace(first=change.first + moved))
    made = replace(result, tokens=tuple(tokens), logprobs=tuple(logprobs), sources=tuple(sources))
    return made, tuple(sorted(changes))


def texts(tokens: Sequence[int], end: int) -> Iterator[tuple[int, list[int]]]:
    """The runs of text tokens, with the position of the first one."""
    run = list[int]()
    for position, token in enumerate((*tokens, end)):
        if token < end:
            run.append(token)
        elif run:
            yield position - len(run), run
            run = []


class Replaced(NamedTuple):
    """An answer whose words were replaced: its tokens that count, all changes, and the expressions that took
    too long."""

    result: Result
    tokens: tuple[int, ...]
    changes: tuple[Change, ...]
    skipped: tuple[str, ...]


def replaced(
    whisper: Whisper,
    language: str,
    result: Result,
    tokens: tuple[int, ...],
    replacements: Replacements,
    changes: tuple[Change, ...],
) -> Replaced:
    """The answer, of which the first `tokens` count, with replacements; `changes` are those before."""
    end, skipped, spaces = whisper.tokens.end, list[str](), language not in SPACELESS
    for number in (None, *range(len(replacements.expressions))):
        edits = list[Edit]()
        for begin, run in texts(tokens, end):
            split = split_words(whisper.tokenizer, language, run)
            text = "".join(word.text for word in split)
            try:
                places = (
                    replacements.places(text, spaces=spaces)
                    if number is None
                    else replacements.places_by_expression(number, text)
                )
            except TimeoutError:
                assert number is not None
                skipped.append(replacements.expressions[number][2])
                continue
            edits += _edits(whisper, split, begin, text, places, result.logprobs)
        if edits:
            longer = sum(edit.longer for edit in edits)
            result, changes = edited(result, edits, end, changes)
            tokens = result.tokens[: len(tokens) + longer]
    return Replaced(result, tokens, changes, tuple(dict.fromkeys(skipped)))


def _edits(
    whisper: Whisper,
    split: Sequence[WordTokens],
    begin: int,
    text: str,
    places: Sequence[Place],
    logprobs: Sequence[float],
) -> Iterator[Edit]:
    """The edits of whole words in which `places` lie; places in the same words are one edit."""
    ends = list(accumulate(len(word.text) for word in split))
    counts = [0, *accumulate(word.count for word in split)]

    def words_of(place: Place) -> tuple[int, int]:
        return bisect_right(ends, place.start), bisect_left(ends, place.end) + 1

    groups = list[tuple[int, int, list[Place]]]()
    for place in places:
        first, last = words_of(place)
        if groups and first < groups[-1][1]:
            earlier = groups.pop()
            groups.append((earlier[0], max(last, earlier[1]), [*earlier[2], place]))
        else:
            groups.append((first, last, [place]))
    for first, last, own in groups:
        start, stop = ends[first] - len(split[first].text), ends[last - 1]
        written, at = "", own[0].start
        for place in own:
            written += text[at : place.start] + place.written
            at = place.end
        new = text[start : own[0].start] + written + text[at:stop]
        if not any(map(str.isalnum, new)):
            new = ""  # no punctuation of words that are gone
        ids = whisper.tokenizer.encode(new, add_special_tokens=False) if new else ()
        if any(token >= whisper.tokens.end for token in ids):
            continue  # it looks like a special token
        instead = slice(begin + counts[first], begin + counts[last])
        mean = math.fsum(logprobs[instead]) / (instead.stop - instead.start)
        yield Edit(
            instead.start,
            instead.stop - instead.start,
            tuple(ids),
            (mean,) * len(ids),
            own[0].start - start if new else 0,
            text[own[0].start : at],
            written if new else "",
            "replacements",
        )
