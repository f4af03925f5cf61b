"""Seeking: where the next window of sequential decoding starts, by the timestamps of this one.

Whisper's own long-form rule (Radford et al. 2022, section 3.8; openai/whisper `transcribe.py`): text
after the last closed segment is discarded, and its audio is decoded again with the next window. Pure
functions of token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...model.special_tokens import SpecialTokens

FRAMES_PER_STEP = 2  # a timestamp's 0.02 s in mel frames of 0.01 s


@dataclass(frozen=True)
class Advance:
    """The tokens of a window's answer that count, and the mel frames up to the next window."""

    tokens: tuple[int, ...]
    frames: int


def advance(tokens: Sequence[int], special: SpecialTokens, frames: int) -> Advance:
    """The step after an answer to a window of `frames` mel frames.

    Two timestamps in a row close a segment and open the next. If the answer ends with a single one,
    no speech follows, and the whole window is done; otherwise everything after the last pair is
    discarded and decoded again. Without a pair the whole answer counts. A pair that would not advance
    at all advances by the whole window, where openai/whisper and transformers would repeat the same
    window forever.
    """
    written = [token for token in tokens if token != special.end]
    stamps = [token >= special.timestamp_begin for token in written]
    pairs = [i for i in range(len(stamps) - 1) if stamps[i] and stamps[i + 1]]
    if not pairs or stamps[-2:] == [False, True]:
        return Advance(tuple(written), frames)
    last = pairs[-1]
    moved = (written[last] - special.timestamp_begin) * FRAMES_PER_STEP
    if moved == 0:
        return Advance(tuple(written), frames)
    return Advance(tuple(written[: last + 2]), min(moved, frames))


def previous_text(tokens: Sequence[int], special: SpecialTokens) -> tuple[int, ...]:
    """The tokens of an answer that count, as previous text of the next window: a closing pair of
    timestamps is written once."""
    stamps = [token >= special.timestamp_begin for token in tokens[-2:]]
    return tuple(tokens[:-1] if len(tokens) > 2 and stamps == [True, True] else tokens)
