"""Recordings for `forescribe distill`: synthetic speech, and recordings of people in other channels.

    python -m training.speech.make_recordings out/synthetic
    python -m training.speech.make_recordings out/people --people ../speakers --channels 4

Without `--people`: the clips of `training.speech.synthesize`, which are joined to recordings of one to two
minutes with pauses. With it: every recording of a folder but the held-out ones, as it is and in other
channels (speed, telephone, noise, room). Every fifth recording by name is held out. What is there is kept.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import soundfile
from scipy.signal import resample_poly

from training.speech.channels import CHANNELS, RATE
from training.speech.synthesize import CLIPS

HELD_OUT_EVERY = 5
LEAST, MOST = 60 * RATE, 120 * RATE
SPEEDS = ((10, 9), (20, 19), (20, 21), (10, 11))
"""Resampling (up, down): 11 % slower to 9 % faster, with the pitch."""


def held_out(folder: Path) -> list[Path]:
    """The recordings of people that no draft learns from: 50 of 251."""
    return sorted(folder.glob("*.flac"))[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]


def joined(shard: Path, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The clips of a shard in random order, in recordings [N] float32."""
    audio = np.load(shard, mmap_mode="r")
    lines = [json.loads(line) for line in shard.with_suffix(".jsonl").read_text().splitlines()]
    parts: list[np.ndarray] = []
    length, wanted = 0, rng.integers(LEAST, MOST)
    for index in rng.permutation(len(lines)):
        start, count = lines[index]["start"], lines[index]["length"]
        pause = np.zeros(int(rng.uniform(0.1, 1.2) * RATE), np.float32)
        level = 10 ** (rng.uniform(-14, 0) / 20)
        parts += [level * audio[start : start + count].astype(np.float32) / 32768, pause]
        length += count + len(pause)
        if length > wanted:
            yield np.concatenate(parts)
            parts, length, wanted = [], 0, rng.integers(LEAST, MOST)


def in_a_channel(audio: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Half of the recordings clean, with a little noise, the others through a channel; never clipped."""
    names = list(CHANNELS)
    audio = CHANNELS["clean" if rng.random() < 0.5 else str(rng.choice(names))](audio, rng)
    audio = audio + 10 ** rng.uniform(-5, -3.3) * rng.standard_normal(len(audio), np.float32)
    return (audio / max(1.0, float(np.abs(audio).max()))).astype(np.float32)


def of_shard(job: tuple[Path, Path]) -> str:
    shard, out = job
    if (out / f"{shard.stem}-done").exists():
        return f"{shard.stem}: kept"
    rng, seconds = np.random.default_rng(random.Random(shard.stem).getrandbits(32)), 0.0
    for number, audio in enumerate(joined(shard, rng)):
        soundfile.write(out / f"{shard.stem}-{number:02d}.flac", in_a_channel(audio, rng), RATE)
        seconds += len(audio) / RATE
    (out / f"{shard.stem}-done").touch()
    return f"{shard.stem}: {seconds / 60:.0f} min"


def of_person(job: tuple[Path, Path, int]) -> str:
    source, out, channels = job
    audio, rate = soundfile.read(source, dtype="float32")
    assert rate == RATE, source
    rng = np.random.default_rng(random.Random(source.stem).getrandbits(32))
    for number in range(channels):
        made = audio
        if number:
            up, down = SPEEDS[rng.integers(len(SPEEDS))]
            made = in_a_channel(resample_poly(audio, up, down).astype(np.float32), rng)
        path = out / f"{source.stem}-{number}.flac"
        if not path.exists():
            soundfile.write(path, made, RATE)
    return source.stem


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.speech.make_recordings")
    parser.add_argument("out", type=Path, help="folder for the recordings")
    parser.add_argument("--people", type=Path, help="folder of FLAC files, 16 kHz")
    parser.add_argument("--channels", type=int, default=4, help="of each recording of a person")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with Pool(options.workers) as pool:
        if options.people is None:
            shards = [(path, options.out) for path in sorted(CLIPS.glob("*[0-9].npy"))]
            for line in pool.imap_unordered(of_shard, shards):
                print(line, flush=True)
            return
        kept = held_out(options.people)
        sources = [path for path in sorted(options.people.glob("*.flac")) if path not in kept]
        jobs = [(path, options.out, options.channels) for path in sources]
        print(f"{len(list(pool.imap_unordered(of_person, jobs)))} people, {len(kept)} held out")


if __name__ == "__main__":
    main()
