"""Splitting: the tokens of a window to segments of text, and their tokens to the words that a reader sees.

Whisper writes a segment as <|start|> text <|end|>. The last one may lack its end where the audio is cut
off within a sentence; it then lasts until the end of the window.

A word is what stands between spaces, with the punctuation next to it: "10:30", "$1,250" and "well-known"
are one word each (openai/whisper splits them at their punctuation). In a language without spaces each
character is a word.

The sources of tokens are counted here too. A round yields a run of accepted tokens and one further token of
the target: a correction means that the next draft was judged and rejected, a bonus that no draft was left, a
plain token that there were no drafts. So the sources alone determine what became of every draft that was
judged.

Functions of token ids and text; know nothing of audio.
"""

from __future__ import annotations

import math
import string
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from forescribe.speculative.requests import Source

from ..formats.transcript_parts import TOKEN_SOURCES, Json, TokenSource
from ..model.tokens import SpecialTokens, WhisperTokens

SPACELESS = {"zh", "ja", "th", "lo", "my", "yue"}
"""Languages without spaces between words."""

OPENING = frozenset("\"'“‘¡¿([{-–—")
UNSPOKEN = OPENING | frozenset("”’.。,，!！?？:：;；)]}、…")
"""Punctuation that takes no time: openai/whisper's, and a few more. Not "%" or "$", which are read
aloud."""

MARKS = string.punctuation + "…–—“”‘’¿¡"
"""What two forms of a word may differ in."""

BROKEN = "\ufffd"
"""In a text, in place of a part of a character."""


@dataclass(frozen=True)
class Stretch:
    """Text tokens with their position in the window, in samples from its start. `first` is the number of
    text tokens before them."""

    start: int
    end: int
    tokens: tuple[int, ...]
    first: int = 0


def stretches(tokens: Sequence[int], special: SpecialTokens, length: int) -> list[Stretch]:
    """The segments of a window of `length` samples, in order, never beyond it.

    Special tokens other than timestamps are left out; stretches without text are dropped. A timestamp
    before the previous one counts as the previous one, so stretches never overlap.
    """
    result: list[Stretch] = []
    start, text, first = 0, list[int](), 0
    stamps = [*map(special.stamp, tokens), length]  # the last segment lasts until the window ends
    for token, stamp in zip((*tokens, special.end), stamps, strict=True):
        if stamp is None:
            if token < special.end:
                text.append(token)
            continue
        stamp = max(start, stamp)
        if text:
            begin, end = min(start, length), min(stamp, length)
            result.append(Stretch(begin, end, tuple(text), first))
        first, text, start = first + len(text), [], stamp
    return result


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
        ends = [0, *np.cumsum([count for _, count in units]).tolist()]
        spoken = [n for n, (text, _) in enumerate(units) if not _is_unspoken(text)]
        first, last = (spoken[0], spoken[-1] + 1) if spoken else (0, len(units))
        while first and not units[first - 1][0].strip():
            first -= 1  # a token that is only a space belongs to the word that it begins
        return cls("".join(text for text, _ in units), ends[-1], ends[first], ends[last])


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


def compression_ratio(text: str) -> float:
    """The size of a text divided by its compressed size: far above 2 for repetitions (openai/whisper)."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data)) if data else 0.0


def mean_logprob(logprobs: Sequence[float]) -> float:
    """The mean over all tokens, end-of-text included; NaN where there are none."""
    return math.fsum(logprobs) / len(logprobs) if logprobs else math.nan


def stats(results: Iterable[Sequence[Source]]) -> dict[str, Json]:
    """Figures from the token sources of a recording's windows.

    `written` counts tokens by source, timestamps and end tokens included. Entry i of
    `judged_at_depth` counts the drafts at depth i + 1 that were judged, because all earlier drafts of
    their round were accepted; entry i of `accepted_at_depth` those that were accepted.
    """
    counts, judged, accepted = Counter[TokenSource](), Counter[int](), Counter[int]()
    for sources in results:
        counts.update(map(name_of, sources))
        depth = 0  # of the next draft of the round under way; a guess was not drafted
        for source in sources:
            if source is Source.ACCEPTED:
                judged[depth] += 1
                accepted[depth] += 1
                depth += 1
            elif source is not Source.GUESSED:
                if source is Source.CORRECTION:
                    judged[depth] += 1
                depth = 0
    depths = range(max(judged, default=-1) + 1)
    return {
        "written": {name: counts[name] for name in TOKEN_SOURCES},
        "judged_at_depth": [judged[depth] for depth in depths],
        "accepted_at_depth": [accepted[depth] for depth in depths],
    }


def name_of(source: Source) -> TokenSource:
    """The name of a source in a transcript. Prompt tokens are not part of transcripts."""
    assert source is not Source.PROMPT
    return cast(TokenSource, source.name.lower())


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
