"""Vectors of many voices through several channels: what training.speakers.plda learns from.

    python -m training.speakers.vectors DATA/speakers

Reads one clip per speaker (the number before the first dash of its name) and writes
training/made/speakers/<channel>.npz: `vectors [N, 256]` as the encoder publishes them, `speakers [N]`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from forescribe.asr.audio.reading import read_audio
from forescribe.diarize.engines.voice_encoder import WINDOW_SAMPLES, SpeakerEncoder, load
from training.paths import MADE
from training.speakers.encoder import FOLDER
from training.speech.channels import CHANNELS

RATE = 16_000
WORK = MADE / "speakers"
START, STEP = RATE // 2, round(0.8 * RATE)
MOST, LEAST = 24, 4
"""Windows per clip, and what a clip must have to count."""


def speaker_of(path: Path) -> int:
    return int(path.name.split("-")[0])


def clips(folder: Path) -> list[Path]:
    """By speaker, so that every machine sees one order."""
    return sorted(folder.glob("*.flac"), key=speaker_of)


def starts(samples: int, step: int) -> np.ndarray:
    """Where the windows of a clip begin."""
    return np.arange(START, samples - WINDOW_SAMPLES + 1, step)[:MOST]


@torch.inference_mode()
def vectors(encoder: SpeakerEncoder, audio: np.ndarray, at: np.ndarray) -> np.ndarray:
    """[n, 256] before the mean is taken off."""
    return encoder.raw(encoder.mels(audio, at)).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    paths = clips(parser.parse_args().folder)
    encoder = load(FOLDER)
    WORK.mkdir(parents=True, exist_ok=True)
    for number, (name, channel) in enumerate(CHANNELS.items()):
        found, speakers = [], []
        # The clean clips decide the centre; of the others half as many windows are enough.
        step = STEP if name == "clean" else 2 * STEP
        for path in paths:
            audio = read_audio(path)
            at = starts(len(audio), step)
            if len(starts(len(audio), STEP)) < LEAST:
                continue
            rng = np.random.default_rng((number, speaker_of(path)))
            found.append(vectors(encoder, channel(audio, rng), at))
            speakers += [speaker_of(path)] * len(at)
        np.savez(WORK / f"{name}.npz", vectors=np.concatenate(found), speakers=np.array(speakers))
        print(f"{name}: {len(speakers)} windows of {len(set(speakers))} speakers", flush=True)


if __name__ == "__main__":
    main()
