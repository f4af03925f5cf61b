"""Hard audio, made of clean recordings: noise, other voices, music, rooms, telephones, clipping, whispering,
pauses, tempo. The words stay those of the clean recording.

Samples are [any length] float64 at 16 kHz; levels are signal-to-noise ratios in dB, against the loud parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import librosa
import numpy as np
from numpy.typing import NDArray
from scipy.signal import butter, fftconvolve, istft, sosfilt, stft

from forescribe.asr.formats.transcript_parts import SAMPLE_RATE

Samples = NDArray[np.float64]
Change = Callable[[Samples, np.random.Generator, Sequence[Samples]], Samples]
"""The clean recording, the source of chance, and other recordings, for voices in the background."""


def add(speech: Samples, other: Samples, db: float) -> Samples:
    """`other` behind speech, as loud as `db` says."""
    loud = np.sqrt(np.mean(speech[np.abs(speech) > 0.01] ** 2))
    return speech + other * (loud * 10 ** (-db / 20) / np.sqrt(np.mean(other**2)))


def noise(count: int, rng: np.random.Generator, slope: float) -> Samples:
    """Noise whose power falls with frequency to the power of `slope`: 0 is white, 1 pink."""
    spectrum = np.fft.rfft(rng.normal(size=count))
    hertz = np.fft.rfftfreq(count, 1 / SAMPLE_RATE)
    spectrum *= np.where(hertz < 30, 0, np.maximum(hertz, 1) ** (-slope / 2))
    return np.fft.irfft(spectrum, count)


def babble(count: int, rng: np.random.Generator, others: Sequence[Samples]) -> Samples:
    """Six other people at once."""
    chosen = rng.choice(len(others), min(6, len(others)), replace=False)
    voices = [np.resize(others[i], count) for i in chosen]
    return np.sum([voice / np.sqrt(np.mean(voice**2)) for voice in voices], axis=0)


def music(count: int, rng: np.random.Generator) -> Samples:
    """Chords of four decaying notes with six overtones, two in a second, and a beat."""
    step = SAMPLE_RATE // 2
    time = np.arange(step) / SAMPLE_RATE
    bars = []
    for _ in range(count // step + 1):
        root = 110 * 2 ** (rng.integers(0, 12) / 12)
        notes = root * 2 ** (np.array([0, 4, 7, 12]) / 12)
        tones = [np.sin(2 * np.pi * n * k * time) / k for n in notes for k in range(1, 7)]
        beat = rng.normal(size=step) * np.exp(-time * 60)
        bars.append(np.sum(tones, axis=0) * np.exp(-time * 3) + 2 * beat)
    return np.concatenate(bars)[:count]


def room(speech: Samples, rng: np.random.Generator, seconds: float, direct_db: float) -> Samples:
    """Reverberation that falls by 60 dB in `seconds`; the direct sound is `direct_db` above it."""
    count = int(seconds * SAMPLE_RATE)
    response = rng.normal(size=count) * np.exp(-6.9 * np.arange(count) / count)
    response *= 10 ** (-direct_db / 20) / np.sqrt(np.sum(response**2))
    response[0] = 1
    return fftconvolve(speech, response)[: len(speech)]


def telephone(speech: Samples) -> Samples:
    """300 to 3,300 Hz in 8 bits by the mu law, at 8 kHz."""
    narrow = librosa.resample(speech, orig_sr=SAMPLE_RATE, target_sr=8000)
    narrow = sosfilt(butter(4, [300, 3300], "band", fs=8000, output="sos"), narrow)
    codes = librosa.mu_compress(narrow / np.max(np.abs(narrow)) * 0.9, mu=255)
    sound = librosa.mu_expand(codes, mu=255)
    return librosa.resample(sound, orig_sr=8000, target_sr=SAMPLE_RATE)


def whisper(speech: Samples, rng: np.random.Generator) -> Samples:
    """The voice's spectral envelope (30 cepstral coefficients) on noise, low frequencies lowered."""
    hertz, _, spectrum = stft(speech, SAMPLE_RATE, nperseg=512)
    cepstrum = np.fft.irfft(np.log(np.abs(spectrum) + 1e-4), axis=0)
    cepstrum[30:-29] = 0
    envelope = np.exp(np.fft.rfft(cepstrum, axis=0).real)
    _, _, breath = stft(rng.normal(size=len(speech)), SAMPLE_RATE, nperseg=512)
    tilt = np.minimum(1, (hertz / 1000 + 0.1))[:, None]
    return istft(envelope * tilt * breath[:, : envelope.shape[1]], SAMPLE_RATE)[1]


def paused(speech: Samples, rng: np.random.Generator) -> Samples:
    """Silence of 3 to 8 s in the quietest quarter of a second of the middle half."""
    size = SAMPLE_RATE // 4
    middle = range(len(speech) // 4, 3 * len(speech) // 4, size // 8)
    at = min(middle, key=lambda start: np.sum(speech[start : start + size] ** 2)) + size // 2
    silence = rng.normal(size=int(rng.uniform(3, 8) * SAMPLE_RATE)) * 1e-4
    return np.concatenate([speech[:at], silence, speech[at:]])


HARD: Mapping[str, Change] = {
    "pink noise, 5 dB": lambda x, r, _: add(x, noise(len(x), r, 1), 5),
    "pink noise, 0 dB": lambda x, r, _: add(x, noise(len(x), r, 1), 0),
    "white noise, 5 dB": lambda x, r, _: add(x, noise(len(x), r, 0), 5),
    "music, 5 dB": lambda x, r, _: add(x, music(len(x), r), 5),
    "babble, 10 dB": lambda x, r, others: add(x, babble(len(x), r, others), 10),
    "babble, 5 dB": lambda x, r, others: add(x, babble(len(x), r, others), 5),
    "room, 0.5 s": lambda x, r, _: room(x, r, 0.5, 0),
    "room, 1.2 s": lambda x, r, _: room(x, r, 1.2, -3),
    "telephone": lambda x, r, _: telephone(x),
    "clipped": lambda x, r, _: np.clip(x * 20, -0.5, 0.5),
    "whispered": lambda x, r, _: whisper(x, r),
    "pause": lambda x, r, _: paused(x, r),
    "tempo 1.5": lambda x, r, _: librosa.effects.time_stretch(x, rate=1.5),
    "tempo 0.7": lambda x, r, _: librosa.effects.time_stretch(x, rate=0.7),
}


def hard(clean: Samples, name: str, seed: int, others: Sequence[Samples]) -> Samples:
    """A recording changed in the way called `name`, its peak at most 0.97."""
    changed = HARD[name](clean / np.max(np.abs(clean)) * 0.5, np.random.default_rng(seed), others)
    return changed / max(1.0, float(np.max(np.abs(changed))) / 0.97)
