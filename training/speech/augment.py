"""Augmentation of clean windows in training: noise, echo, level, and spectral tilt.

All functions draw from a numpy generator. None changes the times of speech.
"""

from __future__ import annotations

import numpy as np
from scipy.signal import fftconvolve

RATE = 16_000
_BANK_SECONDS = 60


def coloured_noise(count: int, slope: float, rng: np.random.Generator) -> np.ndarray:
    """`count` samples of unit power whose spectrum falls by `slope` (0 white, 1 pink, 2 brown)."""
    spectrum = np.fft.rfft(rng.standard_normal(count))
    frequency = np.maximum(np.fft.rfftfreq(count, 1 / RATE), 20.0)
    noise = np.fft.irfft(spectrum * frequency ** (-slope / 2), count)
    return (noise / noise.std()).astype(np.float32)


def hum(count: int, rng: np.random.Generator) -> np.ndarray:
    """Mains hum with harmonics and a little hiss, unit power."""
    t = np.arange(count) / RATE
    base = rng.choice((50.0, 60.0, 100.0, 120.0))
    tones = sum(np.sin(2 * np.pi * base * k * t + rng.uniform(0, 6.28)) / k for k in range(1, 9))
    noise = tones + 0.2 * rng.standard_normal(count)
    return (noise / noise.std()).astype(np.float32)


def fan(count: int, rng: np.random.Generator) -> np.ndarray:
    """Pink noise with slowly varying level, unit power."""
    t = np.arange(count) / RATE
    swing = 1 + 0.5 * np.sin(2 * np.pi * rng.uniform(0.3, 6.0) * t + rng.uniform(0, 6.28))
    noise = coloured_noise(count, 1.0, rng) * swing
    return (noise / noise.std()).astype(np.float32)


def clicks(count: int, rng: np.random.Generator) -> np.ndarray:
    """Keyboard-like taps over a faint hiss, unit power."""
    noise = 0.02 * rng.standard_normal(count)
    for start in rng.integers(0, max(1, count - 800), max(1, count // 4000)):
        tap = rng.standard_normal(min(800, count - start))
        noise[start : start + len(tap)] += tap * np.exp(-np.arange(len(tap)) / 120)
    return (noise / noise.std()).astype(np.float32)


class NoiseBank:
    """A minute of each kind of noise, from which random pieces are drawn."""

    def __init__(self, rng: np.random.Generator) -> None:
        count = _BANK_SECONDS * RATE
        self.kinds = [coloured_noise(count, s, rng) for s in (0.0, 0.5, 1.0, 1.5, 2.0)]
        self.kinds += [hum(count, rng), fan(count, rng), fan(count, rng), clicks(count, rng)]

    def cut(self, count: int, rng: np.random.Generator) -> np.ndarray:
        kind = self.kinds[rng.integers(len(self.kinds))]
        if count > len(kind):
            kind = np.tile(kind, -(-count // len(kind)))
        start = rng.integers(0, len(kind) - count + 1)
        return kind[start : start + count]


def echo(audio: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A small room: a direct path and an exponentially decaying tail of 0.1 to 0.4 s."""
    decay = rng.uniform(0.1, 0.4)
    count = int(decay * RATE)
    tail = rng.standard_normal(count) * np.exp(-6.9 * np.arange(count) / count)
    tail *= rng.uniform(0.1, 0.45) / np.sqrt((tail**2).sum())
    tail[0] = 1.0
    return fftconvolve(audio, tail)[: len(audio)].astype(np.float32)


def damage(
    audio: np.ndarray, bank: NoiseBank, rng: np.random.Generator, strength: float
) -> np.ndarray:
    """Apply random echo, level and noise to a window [N] float32.

    `strength` 0..1 scales their frequency, so that training can begin with cleaner speech.
    """
    if rng.random() < 0.12 * strength:
        audio = echo(audio, rng)
    audio = audio * 10 ** (rng.uniform(-22, 3) / 20)
    power = float((audio**2).mean())
    if power > 0 and rng.random() < 0.55 * strength:
        ratio = rng.uniform(8, 45)  # dB of speech over noise
        audio = audio + bank.cut(len(audio), rng) * np.sqrt(power) * 10 ** (-ratio / 20)
    elif rng.random() < 0.5:
        # Dither, so that silence is not always digital zero.
        audio = audio + rng.standard_normal(len(audio)).astype(np.float32) * 10 ** rng.uniform(
            -5, -3
        )
    return np.clip(audio, -1, 1).astype(np.float32)
