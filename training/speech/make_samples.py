"""Generate samples/: four recordings with reference text, speaker turns and segments.

    python -m training.speech.make_samples

The sentences are in training/data/sample_*.txt and held out of training (`held_out`). A line is
`SPEAKER: text`, or `P: seconds` for a pause. Fixed seeds, held-out voice settings.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import soundfile

from training.paths import SAMPLES
from training.sentences.held_out import read_lines
from training.sentences.read_aloud import spoken
from training.speech.augment import coloured_noise, fan
from training.speech.voices import RATE, Voice, speak

SLT = Voice("flite", "slt", 1.05, 178.0)
RMS = Voice("flite", "rms", 1.05, 105.0)
AWB = Voice("flite", "awb", 1.05, 125.0)
BLOCK = 4096  # samples of a block of FLAC
NOISE_DB = -14.0  # noise below speech in noisy.flac


@dataclass(frozen=True)
class Recording:
    """A sample's name, its speakers by letter, and whether noise is added."""

    name: str
    voices: dict[str, Voice]
    noise: bool = False
    coarse_db: float = 36.0  # rounding noise below the level, so that the file is small


@dataclass(frozen=True)
class Segment:
    """A spoken sentence; times in seconds."""

    start: float
    end: float
    speaker: str
    text: str


RECORDINGS = (
    Recording("memo", {"A": SLT}, coarse_db=39.0),
    Recording("conversation", {"A": RMS, "B": SLT}, coarse_db=35.0),
    Recording("noisy", {"A": RMS}, noise=True, coarse_db=27.0),
    Recording("silence", {"A": AWB}),
)


def perform(recording: Recording) -> tuple[np.ndarray, list[Segment]]:
    """The audio [N] float32 at 16 kHz and its segments."""
    rng = np.random.default_rng(len(recording.name))
    parts: list[np.ndarray] = [np.zeros(RATE // 2, np.float32)]
    position = RATE // 2
    segments: list[Segment] = []
    for line in read_lines(f"sample_{recording.name}.txt"):
        speaker, _, text = line.partition(": ")
        if speaker == "P":
            part: np.ndarray = np.zeros(int(float(text) * RATE), np.float32)
        else:
            part = speak(spoken(text), recording.voices[speaker]).astype(np.float32) / 32768
            start, end = position / RATE, (position + len(part)) / RATE
            segments.append(Segment(round(start, 2), round(end, 2), speaker, text))
        gap = np.zeros(int(rng.uniform(0.35, 0.8) * RATE), np.float32)
        parts += [part, gap]
        position += len(part) + len(gap)
    audio: np.ndarray = np.concatenate(parts)
    # Background noise, as digital zeros would make silence too easy to detect.
    audio = audio + 1e-4 * coloured_noise(len(audio), 1.0, rng)
    if recording.noise:
        speech = float(np.sqrt((audio**2).mean()))
        audio = audio + speech * 10 ** (NOISE_DB / 20) * fan(len(audio), rng)
    return np.clip(audio, -1, 1).astype(np.float32), segments


def turns(segments: list[Segment]) -> list[tuple[str, float, float]]:
    """Consecutive segments of one speaker, at most 1 s apart, joined: (speaker, start, end)."""
    joined: list[tuple[str, float, float]] = []
    for s in segments:
        if joined and joined[-1][0] == s.speaker and s.start - joined[-1][2] <= 1.0:
            joined[-1] = (s.speaker, joined[-1][1], s.end)
        else:
            joined.append((s.speaker, s.start, s.end))
    return joined


def coarse(audio: np.ndarray, recording: Recording) -> np.ndarray:
    """[N] float32 -> [N] int16 whose lowest bits are zeros, as many as the level of each block of FLAC hides:
    a third of the size."""
    whole = np.round(np.clip(audio, -1, 1) * 32767).astype(np.int16)
    for first in range(0, len(whole), BLOCK):
        block = whole[first : first + BLOCK].astype(np.float64)
        level = float(np.sqrt(np.mean(block**2)))
        step = max(level * np.sqrt(12) * 10 ** (-recording.coarse_db / 20), min(level, 4.0), 1.0)
        step = 2.0 ** int(np.log2(step))
        block = np.clip(np.round(block / step), -32768 // step, 32767 // step) * step
        whole[first : first + BLOCK] = block.astype(np.int16)
    return whole


def write(recording: Recording) -> str:
    audio, segments = perform(recording)
    path = SAMPLES / f"{recording.name}.flac"
    soundfile.write(path, coarse(audio, recording), RATE, subtype="PCM_16")
    path.with_suffix(".txt").write_text("\n".join(s.text for s in segments) + "\n")
    rttm = [
        f"SPEAKER {recording.name} 1 {start:.3f} {end - start:.3f} <NA> <NA> {speaker} <NA> <NA>"
        for speaker, start, end in turns(segments)
    ]
    path.with_suffix(".rttm").write_text("\n".join(rttm) + "\n")
    rows = ",\n".join("  " + json.dumps(vars(s)) for s in segments)
    path.with_suffix(".json").write_text(f"[\n{rows}\n]\n")
    return f"{path.name}: {len(audio) / RATE:.1f} s, {len(segments)} segments"


def main() -> None:
    SAMPLES.mkdir(exist_ok=True)
    for recording in RECORDINGS:
        print(write(recording))


if __name__ == "__main__":
    main()
