"""Rooms by the image method, and music: channels of speech besides those in `channels`.

Image sources: Allen and Berkley 1979. The walls absorb what Sabine's formula asks for.
"""

from __future__ import annotations

import numpy as np
from scipy.signal import butter, fftconvolve, sosfilt

RATE = 16_000
SOUND = 343.0
"""Metres per second."""

DECAYS = (0.2, 0.7)
"""Seconds in which the sound of a room falls by 60 dB."""


def impulse_response(
    rng: np.random.Generator, decay: float, size: np.ndarray, microphone: np.ndarray | None = None
) -> np.ndarray:
    """The response of a room of `size` [3] metres from a random place to `microphone`, by default its middle;
    its energy is 1."""
    volume = size.prod()
    surface = 2 * (size[0] * size[1] + size[0] * size[2] + size[1] * size[2])
    reflected = np.sqrt(1 - min(0.99, 0.161 * volume / (surface * decay)))
    source = rng.uniform(0.5, size - 0.5)
    microphone = size / 2 if microphone is None else microphone
    count = int(decay * RATE)
    response = np.zeros(count + 64)
    most = [int(np.ceil(SOUND * decay / (2 * side))) for side in size]
    rooms = np.stack(np.meshgrid(*[np.arange(-n, n + 1) for n in most], indexing="ij"), -1).reshape(
        -1, 3
    )
    for mirrored in np.ndindex(2, 2, 2):
        flips = np.array(mirrored)
        away = np.linalg.norm((1 - 2 * flips) * source + 2 * rooms * size - microphone, axis=1)
        times = away / SOUND * RATE
        heard = times < count
        walls = (np.abs(rooms - flips) + np.abs(rooms)).sum(1)
        level = reflected ** walls[heard] / np.maximum(away[heard], 0.1)
        whole = times[heard].astype(int)
        np.add.at(response, whole, level * (1 - (times[heard] - whole)))
        np.add.at(response, whole + 1, level * (times[heard] - whole))
    response = sosfilt(butter(2, 60, "highpass", fs=RATE, output="sos"), response)
    response = response[max(0, int(np.abs(response).argmax()) - 16) :]
    return np.asarray(response / np.sqrt((response**2).sum()), np.float32)


def large_room(audio: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A room of 3 to 10 m by 3 to 8 m, with a decay of 0.2 to 0.7 s."""
    size = rng.uniform((3, 3, 2.4), (10, 8, 4))
    response = impulse_response(rng, rng.uniform(*DECAYS), size)
    return np.asarray(fftconvolve(audio, response)[: len(audio)], np.float32)


def pink(count: int, rng: np.random.Generator) -> np.ndarray:
    """Noise whose power falls by 3 dB per octave, of power 1."""
    spectrum = np.fft.rfft(rng.standard_normal(count))
    noise = np.fft.irfft(spectrum / np.sqrt(np.maximum(np.arange(len(spectrum)), 1)), count)
    return np.asarray(noise / np.sqrt(np.mean(noise**2)), np.float32)


def over_pink(audio: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Pink noise, 5 to 20 dB below the speech."""
    return _below(audio, pink(len(audio), rng), rng.uniform(5, 20))


def over_music(audio: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Chords of plucked strings, 8 to 20 dB below the speech."""
    played = np.zeros(len(audio))
    beat, fading = int(rng.uniform(0.25, 0.6) * RATE), rng.uniform(2, 8)
    times = np.arange(beat) / RATE
    for start in range(0, len(audio), beat):
        part = played[start : start + beat]
        for tone in 110 * 2 ** (rng.integers(0, 36, 3) / 12):
            for overtone in (1, 2, 3):
                wave = np.exp(-fading * times) * np.sin(2 * np.pi * tone * overtone * times)
                part += wave[: len(part)] / overtone
    return _below(audio, played / np.sqrt(np.mean(played**2)), rng.uniform(8, 20))


def coded(audio: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Opus or MP3 at a low rate and back."""
    import io

    import librosa
    import soundfile

    container, codec = (("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"))[int(rng.integers(2))]
    file = io.BytesIO()
    level = float(rng.uniform(0.85, 0.98))
    soundfile.write(file, audio, RATE, format=container, subtype=codec, compression_level=level)
    file.seek(0)
    decoded, rate = soundfile.read(file, dtype="float32")
    decoded = librosa.resample(decoded, orig_sr=rate, target_sr=RATE) if rate != RATE else decoded
    return np.pad(decoded[: len(audio)], (0, max(0, len(audio) - len(decoded))))


def _below(audio: np.ndarray, noise: np.ndarray, decibels: float) -> np.ndarray:
    level = np.sqrt(np.mean(audio**2)) * 10 ** (-decibels / 20)
    return np.asarray(audio + level * noise, np.float32)
