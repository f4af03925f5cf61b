"""Recordings without speech: a tone under noise is enough for models with random weights; samples as they
are, without the checks of callers' samples; and parts of the bundled samples."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import ArrayLike

from forescribe.asr.audio.inputs import Sound
from forescribe.asr.audio.reading import Recording, open_audio, read_audio

RATE = 16_000
SAMPLES = Path(__file__).parents[2] / "samples"


def write(
    folder: Path, lengths_s: tuple[int, ...], *, seed: int, noise: tuple[float, float]
) -> list[Path]:
    """Wav files of these lengths; the noise's level goes from the first to the second number."""
    rng, paths = np.random.default_rng(seed), []
    for s in lengths_s:
        paths.append(folder / f"{s}.wav")
        tone = np.sin(np.arange(RATE * s) * rng.uniform(0.02, 0.3)) * rng.uniform(0.05, 0.5)
        hiss = rng.standard_normal(RATE * s) * np.linspace(*noise, RATE * s)
        soundfile.write(paths[-1], (tone + hiss).astype(np.float32), RATE, subtype="FLOAT")
    return paths


def tone(seconds: float, seed: int = 0) -> np.ndarray:
    """Samples that a detector of loudness takes for speech."""
    rng, t = np.random.default_rng(seed), np.arange(round(RATE * seconds))
    pure = np.sin(t * rng.uniform(0.02, 0.3)) * rng.uniform(0.1, 0.5)
    return (pure + 0.1 * rng.standard_normal(len(t))).astype(np.float32)


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(RATE * seconds), np.float32)


def wav(samples: np.ndarray) -> bytes:
    """A file of these samples."""
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype="FLOAT")
    return file.getvalue()


def riff(
    data: bytes, rate: int = RATE, *, tag: int = 1, bits: int = 16, size: int | None = None
) -> bytes:
    """Mono samples of 16 bits as wav, with a header that may be wrong."""
    layout = struct.pack("<HHIIHH", tag, 1, rate, 2 * rate, 2, bits)
    parts = b"WAVEfmt " + struct.pack("<I", 16) + layout + b"data"
    stated = len(data) if size is None else size
    return b"RIFF" + struct.pack("<I", 36 + len(data)) + parts + struct.pack("<I", stated) + data


def from_array(samples: ArrayLike, rate: int = RATE, *, block_s: float = 30.0) -> Recording:
    return open_audio(Sound(np.asarray(samples), rate), block_s=block_s)


def cut(name: str, *spans: tuple[float, float]) -> tuple[np.ndarray, int]:
    """Spans of seconds of a bundled sample, behind each other, with their rate."""
    samples = read_audio(SAMPLES / name)
    return np.concatenate([samples[round(a * RATE) : round(b * RATE)] for a, b in spans]), RATE
