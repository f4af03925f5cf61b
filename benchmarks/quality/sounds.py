"""Sounds without speech: silence, noise and music of any length, from a seed.

Knows nothing of models. Levels are root mean square, in dB below full scale.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from training.speech.augment import clicks, coloured_noise, fan, hum

RATE = 16_000
Samples = np.ndarray  # float32
Generator = Callable[[int, np.random.Generator], Samples]  # [count] of unit power

SCALE = (0, 2, 4, 5, 7, 9, 11)  # major, in semitones
CHORDS = ((0, 4, 7), (9, 12, 16), (5, 9, 12), (7, 11, 14))  # I vi IV V
BEAT = RATE // 2  # 120 a minute


def silence(count: int, rng: np.random.Generator) -> Samples:
    """Zeros."""
    return np.zeros(count, np.float32)


def noise(slope: float) -> Generator:
    """Noise with exponent 0 for white, 1 for pink, 2 for brown."""
    return lambda count, rng: coloured_noise(count, slope, rng)


def keyboard(count: int, rng: np.random.Generator) -> Samples:
    """Typing: runs of key strokes, each with press and release, separated by pauses."""
    audio = (0.01 * rng.standard_normal(count)).astype(np.float32)
    at = 0.0
    while at < count - RATE:
        for delay, loud in ((0.0, 1.0), (rng.uniform(0.05, 0.11), 0.4)):
            start = int(at + delay * RATE)
            _add(audio, start, loud * rng.uniform(0.4, 1.0) * _stroke(rng))
        at += RATE * (rng.uniform(0.08, 0.25) if rng.random() < 0.93 else rng.uniform(0.6, 4.0))
    return _unit(audio)


def _stroke(rng: np.random.Generator) -> Samples:
    """A click with a low resonance."""
    t = np.arange(RATE // 25) / RATE
    click = rng.standard_normal(len(t)) * np.exp(-t * 900)
    return click + 0.5 * np.sin(2 * np.pi * rng.uniform(180, 420) * t) * np.exp(-t * 150)


def chords(count: int, rng: np.random.Generator) -> Samples:
    """Four chords of two seconds each, repeated in changing keys."""
    audio, root = np.zeros(count, np.float32), 45
    for number, start in enumerate(range(0, count, 4 * BEAT)):
        if number % 16 == 0:
            root = 45 + int(rng.integers(12))
        for semitone in CHORDS[number % len(CHORDS)]:
            _add(audio, start, _note(root + semitone, 4 * BEAT, 1.2))
    return _unit(audio)


def melody(count: int, rng: np.random.Generator) -> Samples:
    """A melody on a scale, with vibrato, which is the most similar to singing."""
    audio, at, step = np.zeros(count, np.float32), 0, 7
    while at < count:
        length = BEAT * int(rng.choice([1, 1, 2, 4])) // 2
        step = int(np.clip(step + rng.integers(-3, 4), 0, 13))
        pitch = 57 + 12 * (step // 7) + SCALE[step % 7]
        if rng.random() > 0.12:  # else a rest
            _add(audio, at, _note(pitch, length, 2.5, vibrato=0.006))
        at += length
    return _unit(audio)


def drums(count: int, rng: np.random.Generator) -> Samples:
    """Kick, snare and hi-hat in 4/4."""
    audio = np.zeros(count, np.float32)
    t = np.arange(BEAT // 2) / RATE
    kick = np.sin(2 * np.pi * 60 * (t + 0.01 * np.exp(-t * 40))) * np.exp(-t * 18)
    for number, start in enumerate(range(0, count, BEAT // 2)):
        hiss = rng.standard_normal(len(t))
        _add(audio, start, 0.2 * np.diff(hiss, prepend=0.0) * np.exp(-t * 80))
        if number % 4 == 0:
            _add(audio, start, kick)
        elif number % 4 == 2:
            _add(audio, start, 0.6 * hiss * np.exp(-t * 25))
    return _unit(audio)


def band(count: int, rng: np.random.Generator) -> Samples:
    """Chords, melody and drums together."""
    return _unit(chords(count, rng) + 0.8 * melody(count, rng) + 0.9 * drums(count, rng))


KINDS: dict[str, tuple[Generator, tuple[float, ...]]] = {
    "silence": (silence, (0,)),
    "room": (noise(1.5), (-75, -60)),
    "white": (noise(0), (-50, -20)),
    "pink": (noise(1), (-50, -20)),
    "brown": (noise(2), (-50, -20)),
    "hum": (hum, (-50, -25)),
    "fan": (fan, (-50, -25)),
    "clicks": (clicks, (-45, -25)),
    "keyboard": (keyboard, (-45, -25)),
    "chords": (chords, (-40, -15)),
    "melody": (melody, (-40, -15)),
    "drums": (drums, (-40, -15)),
    "band": (band, (-40, -15)),
}
"""By name: the generator and the levels."""


def make(kind: str, level: float, count: int, seed: int) -> Samples:
    """`count` samples within full scale. Raises KeyError for an unknown kind."""
    audio = KINDS[kind][0](count, np.random.default_rng(seed)) * 10 ** (level / 20)
    return np.clip(audio, -1, 1).astype(np.float32)


def _note(pitch: float, length: int, decay: float, vibrato: float = 0.0) -> Samples:
    """A plucked tone with six harmonics; `pitch` is a MIDI note number, 69 for 440 Hz."""
    t = np.arange(length) / RATE
    frequency = 440 * 2 ** ((pitch - 69) / 12)
    phase = 2 * np.pi * frequency * (t + vibrato / 35 * np.sin(2 * np.pi * 5.5 * t))
    tone = sum(np.sin(k * phase) / k**1.3 for k in range(1, 7))
    return (tone * np.minimum(1, t * 80) * np.exp(-t * decay)).astype(np.float32)


def _add(audio: Samples, start: int, sound: np.ndarray) -> None:
    """Add a tone in place, cut at the end."""
    fits = sound[: max(0, len(audio) - start)]
    audio[start : start + len(fits)] += fits.astype(np.float32)


def _unit(audio: Samples) -> Samples:
    return (audio / audio.std()).astype(np.float32)
