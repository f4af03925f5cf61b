"""Clips: recordings with reference texts, joined to the requested length and cut into windows once.

Every system gets the same windows, so differences in words never come from different cuts. Knows
audio and texts; nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forescribe.asr.audio.reading import read_audio
from forescribe.asr.errors import AudioError, UsageError
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE
from forescribe.asr.segment.vad import SileroDetector
from forescribe.asr.segment.windows import cut

Samples = NDArray[np.float32]

PAUSE_S = 1.0
"""Silence between two clips, so that a window can always be cut between them."""


@dataclass(frozen=True)
class Clip:
    """A recording and its reference text."""

    name: str
    samples: Samples  # 16 kHz
    words: str


@dataclass(frozen=True)
class Material:
    """What is measured: the windows with speech, in order, and their reference text."""

    windows: tuple[Samples, ...]
    samples: int  # of the whole file, silence included
    reference: str
    clips: tuple[str, ...]  # names, in order

    @property
    def length_s(self) -> float:
        return self.samples / SAMPLE_RATE

    @property
    def speech_s(self) -> float:
        return sum(len(window) for window in self.windows) / SAMPLE_RATE

    def save(self, path: Path) -> None:
        """Write the windows for the child processes."""
        borders = np.cumsum([len(window) for window in self.windows])
        np.savez(path, samples=np.concatenate(self.windows), borders=borders)


def load_windows(path: Path) -> list[Samples]:
    """Read the windows that `Material.save` wrote."""
    with np.load(path) as arrays:
        return np.split(arrays["samples"], arrays["borders"][:-1])


def read_clips(
    paths: Sequence[str], references: Sequence[str] | None, *, required: bool = True
) -> list[Clip]:
    """Read recordings with the reference texts given, or with the .txt file beside each. Texts that are not
    `required` are those of all recordings or of none: the clips have no words where a file is missing.

    Raises UsageError if a text is missing or is not UTF-8, AudioError if a recording cannot be read."""
    texts = [Path(p).with_suffix(".txt") for p in paths]
    if references is None and not required and not all(text.is_file() for text in texts):
        return [Clip(Path(p).name, read_audio(p), "") for p in paths]
    if references is not None:
        texts = [Path(r) for r in references]
    if len(texts) != len(paths):
        raise UsageError(
            f"{len(paths)} recordings, but {len(texts)} reference texts: name one for each, in their order"
        )
    words = [_words(text) for text in texts]  # all texts first, as decoding takes seconds
    return [Clip(Path(p).name, read_audio(p), w) for p, w in zip(paths, words, strict=True)]


def _words(path: Path) -> str:
    if not path.is_file():
        raise UsageError(f"no reference text {path}; name one per recording with --reference")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"reference text {path} cannot be read as UTF-8: {error}") from error


def join(clips: Sequence[Clip], minutes: float) -> Material:
    """Join all clips, repeating them until the length is reached, and cut windows by voice activity.

    Clips are never shortened, as their reference texts cannot be. Raises AudioError without speech.
    """
    length, pause = minutes * 60 * SAMPLE_RATE, np.zeros(int(PAUSE_S * SAMPLE_RATE), np.float32)
    parts: list[Samples] = []
    chosen: list[Clip] = []
    for clip in cycle(clips):
        parts += [clip.samples, pause]
        chosen.append(clip)
        if len(chosen) >= len(clips) and sum(map(len, parts)) >= length:
            break
    pieces = cut(parts, SileroDetector())
    windows = tuple(window.samples for window in pieces if window.speech)
    if not windows:
        raise AudioError("no speech was found in the recordings: give some with speech")
    words = "\n".join(clip.words for clip in chosen)
    return Material(windows, sum(map(len, parts)), words, tuple(clip.name for clip in chosen))
