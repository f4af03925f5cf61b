"""A recording that no model was trained on and no default was chosen on, with its text.

    python -m training.speech.make_unseen out/unseen.flac --minutes 11.4

Held-out sentences in held-out voices, six for each voice in turn, with pauses of 0.3 to 1.2 s. Writes the
FLAC file and the reference text beside it, as `python -m benchmarks.transcribe` expects them. Fixed seed.
Needs flite and espeak-ng (Debian packages).
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import soundfile

from training.sentences import meeting
from training.sentences.held_out import held_out, read_lines
from training.sentences.read_aloud import spoken
from training.speech.voices import RATE, held_out_voices, speak

SEED = 20261122
PER_VOICE = 6
NOISE = 1e-4
"""Background noise, as digital zeros would make silence too easy to detect."""


def sentences() -> list[str]:
    """Held-out sentences in a fixed random order."""
    found = read_lines("open_eval.txt")
    found += [text for text in meeting.sentences(4000, seed=990) if held_out(text)]
    random.Random(SEED).shuffle(found)
    return found


def recording(minutes: float) -> tuple[np.ndarray, list[str]]:
    """Audio [N] float32 at 16 kHz of at least `minutes`, and its sentences."""
    texts, voices, rng = sentences(), held_out_voices(), np.random.default_rng(SEED)
    parts: list[np.ndarray] = []
    said: list[str] = []
    while sum(map(len, parts)) < minutes * 60 * RATE:
        text, voice = texts[len(said) % len(texts)], voices[len(said) // PER_VOICE % len(voices)]
        parts.append(speak(spoken(text), voice).astype(np.float32) / 32768)
        parts.append(np.zeros(int(rng.uniform(0.3, 1.2) * RATE), np.float32))
        said.append(text)
    audio = np.concatenate(parts)
    audio = audio + NOISE * rng.standard_normal(len(audio), np.float32)
    return np.clip(audio, -1, 1), said


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.speech.make_unseen")
    parser.add_argument("out", type=Path, help="FLAC file to write")
    parser.add_argument("--minutes", type=float, default=11.4)
    options = parser.parse_args()
    audio, said = recording(options.minutes)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(options.out, audio, RATE)
    options.out.with_suffix(".txt").write_text("\n".join(said) + "\n", "utf-8")
    print(f"{options.out}: {len(audio) / RATE / 60:.1f} minutes, {len(said)} sentences")


if __name__ == "__main__":
    main()
