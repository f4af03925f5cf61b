"""Audio: recordings with their words, joined to the length wanted and cut into windows once.

Every system is handed the same windows, so a difference in words is never one of borders. Knows
nothing of models.
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
from forescribe.asr.formats.transcript import SAMPLE_RATE
from forescribe.asr.segment.vad import SileroDetector
from forescribe.asr.segment.windows import cut

Samples = NDArray[np.float32]

PAUSE_S = 1.0
"""Silence between two clips, so that no window need run from one into the next in mid-word."""


@dataclass(frozen=True)
class Clip:
    """A recording and what is said in it."""

    name: str
    samples: Samples  # 16 kHz
    words: str


@dataclass(frozen=True)
class Material:
    """What is measured: the windows with speech, in order, and the words of all of them."""

    windows: tuple[Samples, ...]
    samples: int  # of the whole file, silence included
    reference: str
    clips: tuple[str, ...]  # names, in the order in which they were joined

    @property
    def length_s(self) -> float:
        return self.samples / SAMPLE_RATE

    @property
    def speech_s(self) -> float:
        return sum(len(window) for window in self.windows) / SAMPLE_RATE

    def save(self, path: Path) -> None:
        """The windows, for the child processes."""
        borders = np.cumsum([len(window) for window in self.windows])
        np.savez(path, samples=np.concatenate(self.windows), borders=borders)


def load_windows(path: Path) -> list[Samples]:
    """What `Material.save` wrote."""
    with np.load(path) as held:
        return np.split(held["samples"], held["borders"][:-1])


def read_clips(paths: Sequence[str], references: Sequence[str] | None) -> list[Clip]:
    """Recordings with the texts given, or with the .txt beside each.

    Raises UsageError where a text is missing (a speed without its error rate is no result) or is no
    text, AudioError where a recording cannot be read.
    """
    texts = [Path(p).with_suffix(".txt") for p in paths]
    if references is not None:
        texts = [Path(r) for r in references]
    if len(texts) != len(paths):
        raise UsageError(
            f"{len(paths)} recordings, but {len(texts)} reference texts: name one for each, in their order"
        )
    words = [_words(text) for text in texts]  # all of them, before seconds of decoding
    return [Clip(Path(p).name, read_audio(p), w) for p, w in zip(paths, words, strict=True)]


def _words(path: Path) -> str:
    if not path.is_file():
        raise UsageError(f"no reference text {path}; name one per recording with --reference")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"reference text {path} cannot be read as UTF-8: {error}") from error


def join(clips: Sequence[Clip], minutes: float) -> Material:
    """Whole clips, in turn and again, until the length is reached; then the windows by voice activity.

    Never a part of a clip: its reference would have to be cut as well, where nobody knows. Raises
    AudioError where nobody speaks.
    """
    wanted, pause = minutes * 60 * SAMPLE_RATE, np.zeros(int(PAUSE_S * SAMPLE_RATE), np.float32)
    parts: list[Samples] = []
    chosen: list[Clip] = []
    for clip in cycle(clips):
        parts += [clip.samples, pause]
        chosen.append(clip)
        if sum(map(len, parts)) >= wanted:
            break
    pieces = cut(parts, SileroDetector())
    windows = tuple(window.samples for window in pieces if window.speech)
    if not windows:
        raise AudioError("no speech was found in the recordings: give some with speech")
    words = "\n".join(clip.words for clip in chosen)
    return Material(windows, sum(map(len, parts)), words, tuple(clip.name for clip in chosen))
