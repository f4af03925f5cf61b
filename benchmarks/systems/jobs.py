"""Jobs of speech: recordings joined and cut into windows once, what is run on them, and what comes back.

Every system gets the same windows, so differences in words never come from different cuts. Imports no
system. Import is light.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.comparison import Gamma
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.errors import AudioError, UsageError
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE
from forescribe.asr.model.tokens import Task
from forescribe.asr.segment.cutter import cut
from forescribe.asr.segment.vad import SileroDetector
from forescribe.speculative.requests import Stats

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


def read_clips(paths: Sequence[Path], references: Sequence[Path] | None) -> list[Clip]:
    """Read recordings with the reference texts given, or with the .txt file beside each.

    Raises UsageError if a text is missing or is not UTF-8, AudioError if a recording cannot be read."""
    texts = list(references or (path.with_suffix(".txt") for path in paths))
    if len(texts) != len(paths):
        raise UsageError(
            f"{len(paths)} recordings, but {len(texts)} reference texts: name one for each, in their order"
        )
    words = [_words(text) for text in texts]  # all texts first, as decoding takes seconds
    return [Clip(p.name, read_audio(p), w) for p, w in zip(paths, words, strict=True)]


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


OURS = "forescribe"
GENERATE = "transformers"
ASSISTED = "transformers assisted"
ASSISTED_DEFAULTS = "transformers assisted, its defaults"
SEQUENTIAL = "faster-whisper"
BATCHED = "faster-whisper batched"
NAMES = (OURS, GENERATE, ASSISTED, ASSISTED_DEFAULTS, SEQUENTIAL, BATCHED)

LANGUAGE = "en"
TASK: Task = "transcribe"


@dataclass(frozen=True)
class Job:
    """A row of the table: a system and its settings. Models are folders, so that all weights are equal.

    `converted` is the same target in `dtype` as a folder of CTranslate2; other systems ignore it.
    """

    system: str
    batch: int
    gamma: Gamma
    dtype: str
    model: str
    draft: str | None
    threads: int
    converted: str | None = None
    engine: str = "auto"  # what computes the decoders of this engine's rows

    @property
    def label(self) -> str:
        gamma = "" if self.gamma is None else f" gamma {self.gamma}"
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        return f"{self.system} batch {self.batch}{gamma} {self.dtype}, {threads}"


@dataclass(frozen=True)
class Written:
    """The tokens and texts of one run over all windows."""

    tokens: list[list[int]]  # per window, without the prompt and end-of-text
    texts: list[str]  # in order; joined, they are the file's
    stats: Stats = field(default_factory=Stats)  # what of it is known of the system
    notes: list[str] = field(default_factory=list)
    engine: str | None = None  # what computed the target's decoder, for this engine's rows


class System(Protocol):
    """A loaded system, which can run any number of times."""

    @property
    def threads(self) -> int:
        """The number of threads that it uses."""

    def run(self, windows: Sequence[Samples]) -> Written: ...


def use_threads(count: int) -> int:
    """Set the number of torch's threads in this process; returns the number in effect."""
    import torch

    torch.set_num_threads(count)
    return torch.get_num_threads()
