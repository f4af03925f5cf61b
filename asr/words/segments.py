"""Segments: a window's tokens to text with times.

Whisper writes a segment as <|start|> text <|end|>. The last one may lack its end where the audio
is cut off in mid-sentence; it then lasts until the window ends. Pure functions of token ids.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from ..model.special_tokens import SpecialTokens


@dataclass(frozen=True)
class Stretch:
    """Text tokens with their place in the window, in samples from its start. `first` counts the text
    tokens of the window before them."""

    start: int
    end: int
    tokens: tuple[int, ...]
    first: int = 0


def stretches(tokens: Sequence[int], special: SpecialTokens, length: int) -> list[Stretch]:
    """The segments of a window of `length` samples, in order, never beyond it.

    Special tokens other than timestamps are left out; stretches without text are dropped. A time
    before the one that was last written counts as that one, so stretches never overlap.
    """
    found: list[Stretch] = []
    start, text, first = 0, list[int](), 0

    def close(end: int) -> None:
        nonlocal text, first
        if text:
            begin = min(start, length)
            found.append(Stretch(begin, min(end, length), tuple(text), first))
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
    return found


def compression_ratio(text: str) -> float:
    """Bytes of the text over its compressed bytes: far above 2 for a loop (openai/whisper)."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data)) if data else 0.0


def mean_logprob(logprobs: Sequence[float]) -> float:
    """Mean over all tokens, end-of-text included; NaN where there are none."""
    return math.fsum(logprobs) / len(logprobs) if logprobs else math.nan
