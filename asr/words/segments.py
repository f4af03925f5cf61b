"""Segments: the text tokens of a window with their times.

Whisper writes a segment as <|start|> text <|end|>. The last one may lack its end where the audio is cut
off within a sentence; it then lasts until the end of the window. Pure functions of token ids.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from ..model.special_tokens import SpecialTokens


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

    def close(end: int) -> None:
        nonlocal text, first
        if text:
            begin = min(start, length)
            result.append(Stretch(begin, min(end, length), tuple(text), first))
        first += len(text)
        text = []

    for token in tokens:
        stamp = special.stamp(token)
        if stamp is not None:
            stamp = max(start, stamp)
            close(stamp)
            start = stamp
        elif token < special.end:
            text.append(token)
    close(length)
    return result


def compression_ratio(text: str) -> float:
    """The size of a text divided by its compressed size: far above 2 for repetitions (openai/whisper)."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data)) if data else 0.0


def mean_logprob(logprobs: Sequence[float]) -> float:
    """The mean over all tokens, end-of-text included; NaN where there are none."""
    return math.fsum(logprobs) / len(logprobs) if logprobs else math.nan
