"""Recording channels: telephone, noise, room.

In a corpus with one clip per speaker every speaker has another microphone, so that a model of voices
learns microphones as well. Each channel takes clean speech [T] float32 at 16 kHz and a generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from scipy.signal import butter, resample_poly, sosfilt

from training.speech.augment import NoiseBank, echo

RATE = 16_000
MU = 255

Channel = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def clean(audio: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Unchanged."""
    return audio


def telephone(audio: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Band-pass with random corners at 8 kHz, 8-bit mu-law (G.711), and back to 16 kHz."""
    low, high = rng.uniform(150, 400), rng.uniform(3000, 3700)
    narrow = resample_poly(audio, 1, 2)
    narrow = sosfilt(butter(4, (low, high), "bandpass", fs=RATE // 2, output="sos"), narrow)
    loudest = np.abs(narrow).max()
    narrow = narrow / loudest * rng.uniform(0.1, 0.9) if loudest else narrow
    squeezed = np.sign(narrow) * np.log1p(MU * np.abs(narrow)) / np.log1p(MU)
    steps = np.round(squeezed * 127) / 127
    wide = np.sign(steps) * np.expm1(np.abs(steps) * np.log1p(MU)) / MU
    return resample_poly(wide, 2, 1)[: len(audio)].astype(np.float32)


_BANK: list[NoiseBank] = []


def noise(audio: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Coloured noise, hum, a fan or clicks, 5 to 20 dB below the speech."""
    if not _BANK:
        _BANK.append(NoiseBank(np.random.default_rng(0)))  # takes half a minute, once
    power = np.sqrt(np.mean(audio**2)) * 10 ** (-rng.uniform(5, 20) / 20)
    return (audio + power * _BANK[0].cut(len(audio), rng)).astype(np.float32)


def room(audio: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An echo and the high-frequency loss of a distant microphone."""
    far = sosfilt(butter(1, rng.uniform(2500, 7000), fs=RATE, output="sos"), echo(audio, rng))
    return far.astype(np.float32)


CHANNELS: Mapping[str, Channel] = MappingProxyType(
    {"clean": clean, "telephone": telephone, "noise": noise, "room": room}
)
