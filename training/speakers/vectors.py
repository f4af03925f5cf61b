"""Compute vectors of many voices over several channels, the training data of the PLDA.

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
"""Most and fewest windows per clip; clips with fewer are skipped."""


def speaker_of(path: Path) -> int:
    return int(path.name.split("-")[0])


def clips(folder: Path) -> list[Path]:
    """The clips sorted by speaker, in the same order on every machine."""
    return sorted(folder.glob("*.flac"), key=speaker_of)


def starts(samples: int, step: int) -> np.ndarray:
    """The starts of the windows of a clip."""
    return np.arange(START, samples - WINDOW_SAMPLES + 1, step)[:MOST]


@torch.inference_mode()
def vectors(encoder: SpeakerEncoder, audio: np.ndarray, at: np.ndarray) -> np.ndarray:
    """[n, 256] vectors before the mean is subtracted."""
    return encoder.raw(encoder.mels(audio, at)).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    paths = clips(parser.parse_args().folder)
    encoder = load(FOLDER)
    WORK.mkdir(parents=True, exist_ok=True)
    for number, (name, channel) in enumerate(CHANNELS.items()):
        found, speakers = [], []
        # The clean clips determine the mean; half as many windows of the others suffice.
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
