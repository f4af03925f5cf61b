"""Tokens of a window as text: its stretches, segments and tokens, with the figures of a text.

Knows tokens and text; nothing of engines, recordings or of whether a text counts.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import cast

from forescribe.speculative.requests import Source

from ..formats.transcript_parts import Correction, Segment, TokenSource
from ..model.speech_model import SpeechModel, SpeechTokens
from ..model.vocabulary import bytes_of
from ..words.edits import Change
from .results import Decoded, Token


def text_of(whisper: SpeechModel, tokens: Iterable[int]) -> str:
    """The text of tokens with its spaces, without special tokens."""
    text: str = whisper.tokenizer.decode(
        list(filter(whisper.tokens.is_text, tokens)),
        skip_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )
    return text


@dataclass(frozen=True)
class Stretch:
    """Text tokens with their position in the window, in samples from its start. `first` is the number of
    text tokens before them."""

    start: int
    end: int
    tokens: tuple[int, ...]
    first: int = 0
    text: str = ""


def stretches(tokens: Sequence[int], special: SpeechTokens, length: int) -> list[Stretch]:
    """The segments of a window of `length` samples, in order, never beyond it, without their text.

    Whisper writes a segment as <|start|> text <|end|>. The last one may lack its end where the audio is cut
    off within a sentence; it then lasts until the end of the window.

    Special tokens other than timestamps are left out. A timestamp before the previous one counts as the
    previous one, so stretches never overlap.
    """
    result: list[Stretch] = []
    start, text, first = 0, list[int](), 0
    stamps = [*map(special.stamp, tokens), length]  # the last segment lasts until the window ends
    for token, stamp in zip((*tokens, special.end), stamps, strict=True):
        if stamp is None:
            if special.is_text(token):
                text.append(token)
            continue
        stamp = max(start, stamp)
        if text:
            begin, end = min(start, length), min(stamp, length)
            result.append(Stretch(begin, end, tuple(text), first))
        first, text, start = first + len(text), [], stamp
    return result


def written(whisper: SpeechModel, tokens: Sequence[int], length: int) -> list[Stretch]:
    """The stretches of a window that hold text, with it."""
    parts = stretches(tokens, whisper.tokens, length)
    texts = [replace(part, text=text_of(whisper, part.tokens)) for part in parts]
    return [part for part in texts if part.text.strip()]


def texts_of(whisper: SpeechModel, decoded: Decoded) -> list[Stretch]:
    """The stretches of a window that hold text; none where it does not count."""
    counts = decoded.state == "decoded"
    return written(whisper, decoded.tokens, decoded.length) if counts else []


def segments_of(whisper: SpeechModel, decoded: Decoded) -> tuple[Segment, ...]:
    """A window's segments, without words."""
    result, parts = decoded.result, texts_of(whisper, decoded)
    doubts = {start: reason for start, _, reason in decoded.doubts}
    ratio = compression_ratio(text_of(whisper, result.tokens)) if parts else 0.0
    return tuple(
        Segment(
            id=0,
            window=decoded.index,
            window_sample=decoded.start,
            start_sample=decoded.start + part.start,
            end_sample=decoded.start + part.end,
            text=part.text,
            tokens=part.tokens,
            temperature=result.request.temperature,
            avg_logprob=mean_logprob(result.logprobs),
            compression_ratio=ratio,
            no_speech_prob=result.probe[0],
            doubt=decoded.doubt or doubts.get(part.start),
            corrections=tuple(_corrections(whisper, part, decoded.changes)),
        )
        for part in parts
    )


def _corrections(
    whisper: SpeechModel, part: Stretch, changes: Iterable[Change]
) -> Iterator[Correction]:
    """The changes of a stretch."""
    for change in changes:
        place, last = change.first - part.first, len(part.tokens)
        # Where words are gone, what is before them tells of it.
        gone, begins = not change.tokens, place == 0 and not part.first
        if begins or (0 < place <= last if gone else 0 <= place < last):
            at = len(text_of(whisper, part.tokens[:place])) + change.indent
            yield Correction(at, change.heard, change.written, change.source)


def tokens_of(whisper: SpeechModel, decoded: Decoded) -> Iterator[Token]:
    """The tokens of a window's text; their bytes joined are that text."""
    if decoded.state != "decoded":
        return
    # There are more probabilities than tokens where only the first tokens of an answer count.
    pairs = zip(decoded.tokens, decoded.result.logprobs, strict=False)
    scored = ((token, logprob) for token, logprob in pairs if whisper.tokens.is_text(token))
    for part in stretches(decoded.tokens, whisper.tokens, decoded.length):
        own = list(islice(scored, len(part.tokens)))
        if not text_of(whisper, part.tokens).strip():
            continue  # it became no segment
        for token, logprob in own:
            data = bytes_of(whisper.tokenizer.convert_ids_to_tokens(token))
            yield Token(data.decode(errors="replace"), logprob, data)


def compression_ratio(text: str) -> float:
    """The size of a text divided by its compressed size: far above 2 for repetitions (openai/whisper)."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data)) if data else 0.0


def mean_logprob(logprobs: Sequence[float]) -> float:
    """The mean over all tokens, end-of-text included; NaN where there are none."""
    return math.fsum(logprobs) / len(logprobs) if logprobs else math.nan


def name_of(source: Source) -> TokenSource:
    """The name of a source in a transcript. Prompt tokens are not part of transcripts."""
    assert source is not Source.PROMPT
    return cast(TokenSource, source.name.lower())
