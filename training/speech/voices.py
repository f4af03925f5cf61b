"""Synthetic voices: flite and espeak-ng as functions from text to 16 kHz samples.

Defines the settings of both command line synthesisers for training and for evaluation. Knows nothing of
the spoken form of text (`read_aloud`) or of windows.
"""

from __future__ import annotations

import io
import random
import subprocess
import tempfile
import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soxr

RATE = 16_000
FLITE = {  # voice -> (share of training clips, mean pitch range in Hz)
    "slt": (0.22, (155, 200)),
    "rms": (0.22, (85, 120)),
    "awb": (0.16, (100, 145)),
    "kal16": (0.10, (85, 120)),
    "kal": (0.04, (85, 120)),
}
ESPEAK = {"en-us": 0.16, "en-gb": 0.10}
STYLES = ("", "m1", "m2", "m3", "m5", "m7", "f1", "f2", "f3")
STRETCH = (0.84, 1.14)  # of flite's durations; fast speech saves training time
# Duration factors in this range are reserved for evaluation.
HELD_OUT_STRETCH = (1.03, 1.07)


@dataclass(frozen=True)
class Voice:
    """A synthesiser setting; speed is a duration factor (flite) or words per minute."""

    engine: str
    name: str
    speed: float
    pitch: float

    @property
    def family(self) -> str:
        """The speaker: clips of one family may be one speaker in a window."""
        return f"{self.engine}:{self.name}"


def training_voice(rng: random.Random) -> Voice:
    shares = [share for share, _ in FLITE.values()] + list(ESPEAK.values())
    name = rng.choices(list(FLITE) + list(ESPEAK), shares)[0]
    if name in FLITE:
        stretch = rng.uniform(*STRETCH)
        while HELD_OUT_STRETCH[0] <= stretch <= HELD_OUT_STRETCH[1]:
            stretch = rng.uniform(*STRETCH)
        return Voice("flite", name, round(stretch, 3), float(rng.randint(*FLITE[name][1])))
    style = rng.choice(STYLES)
    full = f"{name}+{style}" if style else name
    return Voice("espeak", full, float(rng.randint(145, 205)), float(rng.randint(35, 65)))


def speak(text: str, voice: Voice) -> np.ndarray:
    """Synthesise samples [N] int16 at 16 kHz, trimmed, with peak at 0.6 of full scale."""
    raw = _flite(text, voice) if voice.engine == "flite" else _espeak(text, voice)
    with wave.open(io.BytesIO(raw)) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    audio = samples.astype(np.float32) / 32768
    if rate != RATE:
        audio = soxr.resample(audio, rate, RATE)
    audio = trim(audio)
    peak = float(np.abs(audio).max()) if len(audio) else 0.0
    return (audio * (0.6 * 32767 / max(peak, 1e-4))).astype(np.int16)


def trim(audio: np.ndarray, floor_db: float = -42.0) -> np.ndarray:
    """Trim to 20 ms around the frames (10 ms) louder than `floor_db` below the loudest."""
    frames = len(audio) // 160
    if frames == 0:
        return audio[:0]
    energy = (audio[: frames * 160].reshape(frames, 160) ** 2).mean(1)
    loud = np.flatnonzero(energy > energy.max() * 10 ** (floor_db / 10))
    return audio[max(0, loud[0] - 2) * 160 : (loud[-1] + 3) * 160]


def _flite(text: str, voice: Voice) -> bytes:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as tmp:
        path = Path(tmp) / "a.wav"
        command = ["flite", "-voice", voice.name, "-t", text, "-o", str(path)]
        command += ["--setf", f"duration_stretch={voice.speed}"]
        command += ["--setf", f"int_f0_target_mean={voice.pitch}"]
        subprocess.run(command, check=True, capture_output=True)
        return path.read_bytes()


def _espeak(text: str, voice: Voice) -> bytes:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as tmp:
        path = Path(tmp) / "a.wav"
        command = ["espeak-ng", "-v", voice.name, "-s", f"{voice.speed:.0f}"]
        command += ["-p", f"{voice.pitch:.0f}", "-w", str(path), "--", text]
        subprocess.run(command, check=True, capture_output=True)
        return path.read_bytes()
