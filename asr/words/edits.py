"""Edits: other words in place of those of an answer, with what was there before.

Tokens, log-probabilities and sources change together, so that words and everything else that is made of an
answer follow; times stay those of what was heard. `replaced` makes the edits of replacements and of
redaction; terms are for the model (`second_look`).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, filterfalse
from typing import NamedTuple

from forescribe.speculative.requests import Result, Source

from ..formats.transcript_parts import CorrectionSource
from ..model.languages import SPACELESS
from ..model.speech_model import SpeechModel, SpeechTokens
from .assembly import CLOSING, SENTENCE_END, UNSPOKEN, WordTokens, split_words
from .redaction import Redactor
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
    whisper: SpeechModel, result: Result, edits: Sequence[Edit], before: Sequence[Change] = ()
) -> tuple[Result, tuple[Change, ...]]:
    """The answer with `edits`, which do not overlap, and all changes in order. Where an edit is of words that
    were changed `before`, both are one change: from what was heard to what is written now."""
    edits = sorted(edits)
    tokens, logprobs = list(result.tokens), list(result.logprobs)
    sources = list(result.sources)
    for edit in reversed(edits):
        place = slice(edit.at, edit.end)
        tokens[place], logprobs[place] = edit.tokens, edit.logprobs
        sources[place] = [Source.PLAIN] * len(edit.tokens)
    places = [n for n, token in enumerate(result.tokens) if whisper.tokens.is_text(token)]
    places.append(len(result.tokens))  # behind the last one, where words are gone

    def moved(at: int) -> int:
        """The number of text tokens before position `at` of `result`, as they are now."""
        earlier = sum(edit.longer for edit in edits if edit.end <= at)
        return bisect_left(places, at) + earlier

    groups = [_Group(edit.at, edit.end, (edit,), ()) for edit in edits]
    for change in before:
        at, last = places[change.first], places[min(change.first + change.tokens, len(places) - 1)]
        own = [g for g in groups if g.at < max(last, at + 1) and at < g.end]
        groups = [group for group in groups if group not in own]
        groups.append(
            _Group(
                min([at, *(g.at for g in own)]),
                max([last, *(g.end for g in own)]),
                sum((g.edits for g in own), ()),
                sum((g.changes for g in own), ((at, change),)),
            )
        )
    made = replace(result, tokens=tuple(tokens), logprobs=tuple(logprobs), sources=tuple(sources))
    return made, tuple(sorted(g.change(whisper, result.tokens, moved(g.at)) for g in groups))


class _Group(NamedTuple):
    """Edits, and earlier changes with their positions, that are of the same tokens `at` to `end`."""

    at: int
    end: int
    edits: tuple[Edit, ...]
    changes: tuple[tuple[int, Change], ...]

    def change(self, whisper: SpeechModel, tokens: Sequence[int], first: int) -> Change:
        """All of it as one change behind `first` text tokens; `tokens` are those before the edits."""
        if not self.changes:
            (edit,) = self.edits
            return Change(first, *edit[4:], len(edit.tokens))
        if not self.edits:
            return self.changes[0][1]._replace(first=first)

        def text(some: Sequence[int]) -> str:
            words = list(filter(whisper.tokens.is_text, some))
            return "".join(word.text for word in split_words(whisper.tokenizer, None, words))

        def before(position: int) -> int:
            return len(text(tokens[self.at : position]))

        heard = written = text(tokens[self.at : self.end])
        for at, change in sorted(self.changes, reverse=True):
            place = before(at) + change.indent
            heard = heard[:place] + change.heard + heard[place + len(change.written) :]
        for edit in sorted(self.edits, reverse=True):
            written = written[: before(edit.at)] + text(edit.tokens) + written[before(edit.end) :]
        count = sum(map(whisper.tokens.is_text, tokens[self.at : self.end]))
        count += sum(edit.longer for edit in self.edits)
        while heard[-1:] == written[-1:] != "" and not heard[-1].isalnum():
            heard, written = heard[:-1], written[:-1]
        indent = len(written) - len(written.lstrip())
        return Change(first, indent, heard.strip(), written.strip(), "replacements", count)


def texts(tokens: Sequence[int], special: SpeechTokens) -> Iterator[tuple[int, list[int]]]:
    """The runs of text tokens, with the position of the first one."""
    run = list[int]()
    for position, token in enumerate((*tokens, special.end)):
        if special.is_text(token):
            run.append(token)
        elif run:
            yield position - len(run), run
            run = []


@dataclass
class Replaced:
    """An answer on its way through replacements: its tokens that count, all changes, and the expressions that
    took too long. `spoken` are the tokens that were heard there."""

    whisper: SpeechModel
    language: str
    result: Result
    tokens: tuple[int, ...]
    changes: tuple[Change, ...]
    skipped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.spoken = self.tokens
        texts = accumulate(map(self.whisper.tokens.is_text, self.result.tokens))
        self._origin = [0.0, *map(float, texts)]

    @property
    def origin(self) -> tuple[float, ...]:
        """Where each text token and the end lie among those of `spoken`; tokens that replace others share
        their place."""
        is_text = self.whisper.tokens.is_text
        places = [n for n, token in enumerate(self.tokens) if is_text(token)]
        last = places[-1] + 1 if places else 0
        return tuple(self._origin[n] for n in (*places, last))

    def apply_expression(self, replacements: Replacements, number: int) -> None:
        """Replace what an expression finds, unless that takes too long."""

        def find(text: str) -> Sequence[Place]:
            try:
                return replacements.places_by_expression(number, text)
            except TimeoutError:
                told = replacements.expressions[number][2]
                self.skipped = tuple(dict.fromkeys((*self.skipped, told)))
                return []

        self.apply(find)

    def apply(self, find: Callable[[str], Sequence[Place]]) -> None:
        """Replace what `find` finds in each run of text; words that count and others are apart."""
        count, edits = len(self.tokens), list[Edit]()
        for first, some in ((0, self.tokens), (count, self.result.tokens[count:])):
            for begin, run in texts(some, self.whisper.tokens):
                split = split_words(self.whisper.tokenizer, self.language, run)
                text = "".join(word.text for word in split)
                places = find(text)
                edits += _edits(
                    self.whisper, split, first + begin, text, places, self.result.logprobs
                )
        if not edits:
            return
        for edit in sorted(edits, reverse=True):
            start, stop = self._origin[edit.at], self._origin[edit.end]
            parts = map(self.whisper.tokenizer.decode, ([token] for token in edit.tokens))
            spoken = [not UNSPOKEN.issuperset(text.strip()) for text in parts]
            before = [0, *accumulate(spoken)]
            share = (stop - start) / max(1, before[-1])
            self._origin[edit.at : edit.end] = [start + share * count for count in before[:-1]]
        longer = sum(edit.longer for edit in edits if edit.end <= count)
        self.result, self.changes = edited(self.whisper, self.result, edits, self.changes)
        self.tokens = self.result.tokens[: count + longer]


def replaced(
    whisper: SpeechModel,
    language: str,
    result: Result,
    tokens: tuple[int, ...],
    replacements: Replacements | None,
    changes: tuple[Change, ...],
    redactor: Redactor | None = None,
) -> Replaced:
    """The answer, of which the first `tokens` count, with replacements, then with marks in place of personal
    data; `changes` are those before. Where there is a redactor nothing tells what was heard. Raises
    UsageError where it cannot redact."""
    answer = Replaced(whisper, language, result, tokens, changes)
    if replacements is not None:
        answer.apply(partial(replacements.places, spaces=language not in SPACELESS))
        for number in range(len(replacements.expressions)):
            answer.apply_expression(replacements, number)
    if redactor is not None:
        answer.apply(lambda text: redactor.places(text, language))
        answer.changes = ()
        special = tuple(filterfalse(whisper.tokens.is_text, result.request.prompt))
        request = replace(result.request, prompt=special, probe=None)
        answer.result = replace(answer.result, request=request)
    return answer


def _edits(
    whisper: SpeechModel,
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
        both_gone = groups and not place.written and not groups[-1][2][-1].written
        if groups and first < groups[-1][1] + bool(both_gone):
            earlier = groups.pop()
            groups.append((earlier[0], max(last, earlier[1]), [*earlier[2], place]))
        else:
            groups.append((first, last, [place]))
    last_changed = 0
    for first, last, own in groups:
        start, stop = ends[first] - len(split[first].text), ends[last - 1]
        written, at = "", own[0].start
        for place in own:
            written += text[at : place.start] + place.written
            at = place.end
        indent, new = own[0].start - start, text[start : own[0].start] + written + text[at:stop]
        if not any(map(str.isalnum, new)):
            # No punctuation of words that are gone, but for the end of a sentence.
            closing = new.strip().rstrip(CLOSING)[-1:]
            indent, new, written = 0, "", ""
            if closing in SENTENCE_END and last_changed < first:
                first -= 1
                start = ends[first] - len(split[first].text)
                kept = text[start : ends[first]].rstrip(" ,;:-–—")
                indent, new = len(kept), kept + closing * (kept[-1:] not in SENTENCE_END)
        last_changed = last
        ids = whisper.tokenizer.encode(new, add_special_tokens=False) if new else ()
        if not all(map(whisper.tokens.is_text, ids)):  # beside what looks like a special one
            new = f" {' '.join(place.written for place in own)}"
            ids = whisper.tokenizer.encode(new, add_special_tokens=False)
            if not all(map(whisper.tokens.is_text, ids)):
                continue
        instead = slice(begin + counts[first], begin + counts[last])
        mean = math.fsum(logprobs[instead]) / (instead.stop - instead.start)
        yield Edit(
            instead.start,
            instead.stop - instead.start,
            tuple(ids),
            (mean,) * len(ids),
            indent,
            text[own[0].start : at],
            written,
            "replacements",
        )
