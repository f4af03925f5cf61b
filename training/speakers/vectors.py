"""Compute vectors of many voices over several channels, the training data of the PLDA.

    python -m training.speakers.vectors DATA/speakers

Reads one clip per speaker (the number before the first dash of its name) and writes
training/made/speakers/vectors.npz: `vectors [N, 192]` as the encoder computes them, `speakers [N]`,
`channels [N]`, `seconds [N]` and `places [N]`, where in its clip a piece begins, from 0 to 1.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from forescribe.asr.audio.reading import read_audio
from forescribe.diarize.engines import embedded
from forescribe.diarize.engines.voice_encoder import features, load
from training.paths import MADE
from training.speech.channels import CHANNELS
from training.speech.rooms import coded, large_room, over_music, over_pink

WORK = MADE / "speakers"
NAME = "vectors.npz"
LENGTHS = (50, 80, 120, 160, 200)
"""Frames of 10 ms of a piece."""

PLAN = (
    ("clean", CHANNELS["clean"], 20),
    ("telephone", CHANNELS["telephone"], 8),
    ("telephone", CHANNELS["telephone"], 8),
    ("noise", CHANNELS["noise"], 6),
    ("noise", over_pink, 8),
    ("room", CHANNELS["room"], 6),
    ("room", large_room, 8),
    ("codec", coded, 6),
    ("music", over_music, 6),
)
"""Name of a channel, what makes it, and pieces of each clip."""


def speaker_of(path: Path) -> int:
    return int(path.name.split("-")[0])


def clips(folder: Path) -> list[Path]:
    """The clips sorted by speaker, in the same order on every machine."""
    return sorted(folder.glob("*.flac"), key=speaker_of)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    encoder = load(embedded.FOLDER)
    rows: dict[str, list[np.ndarray]] = {}
    for path in clips(parser.parse_args().folder):
        clean = read_audio(path)
        rng = np.random.default_rng(speaker_of(path))
        for name, channel, count in PLAN:
            frames = features(np.asarray(channel(clean, rng), np.float32))
            lengths = [n for n in rng.choice(LENGTHS, count).tolist() if len(frames) > n + 20]
            starts = [int(rng.integers(10, len(frames) - n - 5)) for n in lengths]
            if not lengths:
                continue
            cut = [frames[a : a + n] for a, n in zip(starts, lengths, strict=True)]
            for key, values in {
                "vectors": encoder.vectors(cut),
                "speakers": np.full(len(cut), speaker_of(path)),
                "channels": np.full(len(cut), name),
                "seconds": np.array(lengths) / 100,
                "places": np.array(starts) / len(frames),
            }.items():
                rows.setdefault(key, []).append(values)
        print(f"{path.name}: {sum(map(len, rows['speakers']))} pieces", flush=True)
    WORK.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {key: np.concatenate(values) for key, values in rows.items()}
    np.savez(WORK / NAME, **arrays)


if __name__ == "__main__":
    main()
