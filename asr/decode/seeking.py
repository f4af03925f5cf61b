"""Seeking: where the next window of sequential decoding starts, told by the timestamps of this one.

Whisper's own long-form rule (Radford et al. 2022, section 3.8; openai/whisper `transcribe.py`): text
behind the last closed segment is thrown away and its audio is heard again. Pure functions of token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..model.special_tokens import SpecialTokens

FRAMES_PER_STEP = 2  # a timestamp's 0.02 s in mel frames of 0.01 s


@dataclass(frozen=True)
class Advance:
    """What of a window's answer counts, and how many mel frames further the next window starts."""

    tokens: tuple[int, ...]
    frames: int


def advance(tokens: Sequence[int], special: SpecialTokens, frames: int) -> Advance:
    """The step behind an answer to a window of `frames` mel frames.

    Two timestamps in a row close a segment and open the next. If the answer ends with a single one,
    nothing is said behind it, and the whole window is done; else everything behind the last pair is
    dropped and heard again. Without a pair the whole answer counts. A pair that would not move at all
    moves by the whole window, where openai/whisper and transformers would hear the same forever.
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


def spoken_before(tokens: Sequence[int], special: SpecialTokens) -> tuple[int, ...]:
    """An answer that counts, as previous text of the next window: a closing pair is written once."""
    stamps = [token >= special.timestamp_begin for token in tokens[-2:]]
    return tuple(tokens[:-1] if len(tokens) > 2 and stamps == [True, True] else tokens)
