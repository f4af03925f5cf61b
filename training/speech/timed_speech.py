"""Synthetic speech with the time of every written word.

The audio equals that of `voices.speak`, but is cut at the first and last word instead of by loudness.
Needs the synthesisers as libraries (Debian: libflite1, libespeak-ng1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache

import numpy as np
import soxr

from training.sentences.read_aloud import spoken
from training.speech.espeak import Espeak
from training.speech.flite import Flite
from training.speech.voices import RATE, Voice

BORDER = RATE // 50  # 20 ms of silence on both sides
PAUSE_S = (0.25, 0.9)


@dataclass(frozen=True)
class TimedWord:
    """A written word with its times in samples at 16 kHz; None where two words are joined."""

    text: str
    start: int | None
    end: int | None

    def moved(self, by: int) -> TimedWord:
        start, end = (None if at is None else at + by for at in (self.start, self.end))
        return TimedWord(self.text, start, end)


@dataclass(frozen=True, eq=False)
class TimedSpeech:
    """Samples [N] float32 at 16 kHz with peak 0.6, and their words in order."""

    samples: np.ndarray
    words: tuple[TimedWord, ...]


def speak_timed(text: str, voice: Voice) -> TimedSpeech:
    """Synthesise the written `text`. Raises ValueError if spoken words cannot be assigned to written
    ones, and OSError if the synthesiser is not installed."""
    said = spoken(text)
    sound = _engine(voice.engine).say(said, voice)
    if len(sound.starts) != len(_words(said)):
        raise ValueError(f"{len(sound.starts)} words heard in {said!r}")
    audio = sound.samples.astype(np.float32) / 32768
    if sound.rate != RATE:
        audio = soxr.resample(audio, sound.rate, RATE)
    starts, ends = (_samples(times) for times in (sound.starts, sound.ends))
    assert starts[0] is not None and ends[-1] is not None
    begin = max(0, starts[0] - BORDER)
    audio = audio[begin : ends[-1] + BORDER]
    audio = audio * (0.6 / max(float(np.abs(audio).max()), 1e-4))
    words = [
        TimedWord(word, starts[first], ends[last - 1]).moved(-begin)
        for word, (first, last) in zip(_words(text), spoken_spans(text), strict=True)
    ]
    return TimedSpeech(audio.astype(np.float32), tuple(words))


def lay(parts: Sequence[TimedSpeech], rng: np.random.Generator) -> TimedSpeech:
    """Concatenate the parts over background noise, with pauses of PAUSE_S around them."""
    samples, words = [np.zeros(0, np.float32)], list[TimedWord]()
    for part in parts:
        samples.append(_room(rng))
        at = sum(map(len, samples))
        samples.append(part.samples)
        words += [word.moved(at) for word in part.words]
    audio = np.concatenate([*samples, _room(rng)])
    # Digital zeros would make silence too easy to detect.
    audio = audio + 1e-4 * rng.standard_normal(len(audio))
    return TimedSpeech(audio.astype(np.float32), tuple(words))


def windows(
    parts: Iterable[TimedSpeech], rng: np.random.Generator, most: int = 30 * RATE
) -> Iterator[TimedSpeech]:
    """Concatenate the parts into recordings of at most `most` samples."""
    pause = round(PAUSE_S[1] * RATE)
    held: list[TimedSpeech] = []
    for part in parts:
        if held and sum(len(p.samples) + pause for p in [*held, part]) + pause > most:
            yield lay(held, rng)
            held = []
        held.append(part)
    if held:
        yield lay(held, rng)


def _room(rng: np.random.Generator) -> np.ndarray:
    return np.zeros(round(rng.uniform(*PAUSE_S) * RATE), np.float32)


def spoken_spans(text: str) -> list[tuple[int, int]]:
    """For each written word, the range of words of `spoken(text)` that it is read as: [first, last).

    A number is several words. Raises ValueError if adjacent changed words cannot be separated.
    """
    written, said = _words(text), _words(spoken(text))
    spans: list[tuple[int, int]] = []
    blocks = SequenceMatcher(None, written, said, autojunk=False).get_opcodes()
    for kind, w1, w2, s1, s2 in blocks:
        if kind == "equal":
            spans += [(s, s + 1) for s in range(s1, s2)]
        elif kind == "insert" and spans:  # "$3 million": "dollars" follows an unchanged word
            spans[-1] = (spans[-1][0], s2)
        else:
            spans += _shares(written[w1:w2], s1, s2)
    return spans


def _shares(written: list[str], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Split adjacent changed words by their lengths when read alone."""
    counts = [len(_words(spoken(word))) for word in written]
    if len(counts) == 1:
        counts = [last - first]
    if sum(counts) != last - first or 0 in counts:
        raise ValueError(f"{' '.join(written)!r} is read as {last - first} words")
    for count in counts:
        yield first, first + count
        first += count


def _words(text: str) -> list[str]:
    """The words between spaces, without punctuation."""
    return [word for word in text.split() if re.search(r"\w", word)]


def _samples(times: list[float | None]) -> list[int | None]:
    return [None if time is None else round(time * RATE) for time in times]


@cache
def _engine(name: str) -> Flite | Espeak:
    return Flite() if name == "flite" else Espeak()
