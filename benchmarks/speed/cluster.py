"""How fast two workers of `--cluster auto` are on this machine, against the command without a cluster.

    python -m benchmarks.speed.cluster --json cluster.json

`--count` recordings of `--seconds` are cut from the samples. Both ways transcribe them in turn, `--repeats`
times, each into an empty folder. A run of one recording before tells what it takes to start Ray and to load
models; the throughput is that of the rest, audio seconds per second. Results are compared: they are equal
but for what a run cost. Exit status: 0; 1 if results differ or the ratio is below `--at-least`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import soundfile

from benchmarks import provenance
from benchmarks.rows import layout

SAMPLES = ("memo", "conversation", "noisy")
HEAD = ("way", "run", "audio s", "start s", "total s", "x real time", "whole x", "load")


@dataclass(frozen=True)
class Row:
    """One run. `start_s` is the time of a run with one short recording, `speed` is that without it."""

    way: str
    run: int
    audio_s: float
    start_s: float
    total_s: float
    load: float

    @property
    def speed(self) -> float:
        """Audio seconds per second after the start."""
        return self.audio_s / (self.total_s - self.start_s)

    @property
    def whole(self) -> float:
        """Audio seconds per second of the whole run."""
        return self.audio_s / self.total_s

    def cells(self) -> tuple[str, ...]:
        numbers = (self.audio_s, self.start_s, self.total_s, self.speed, self.whole, self.load)
        return (self.way, str(self.run), *(f"{number:.1f}" for number in numbers))


def cut(folder: Path, count: int, seconds: float) -> float:
    """Cut recordings from the samples; returns their seconds. One short one goes to `folder/one`."""
    rng = random.Random(18)
    root = provenance.ROOT / "samples"
    audio = {name: soundfile.read(root / f"{name}.flac") for name in SAMPLES}
    (folder / "one").mkdir(parents=True)
    (folder / "all").mkdir()
    total = 0.0
    for number in range(count):
        samples, rate = audio[rng.choice(SAMPLES)]
        length = int(seconds * rng.uniform(0.5, 1.5) * rate)
        start = rng.randrange(max(1, len(samples) - length))
        piece = samples[start : start + length]
        soundfile.write(folder / "all" / f"{number:03}.wav", piece, rate)
        total += len(piece) / rate
    samples, rate = audio[SAMPLES[0]]
    soundfile.write(folder / "one" / "000.wav", samples[: 2 * rate], rate)
    return total


def run(audio: Path, out: Path, model: str, more: Sequence[str]) -> float:
    """Seconds of one run."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "forescribe", "transcribe", str(audio), "-o", str(out)]
    subprocess.run([*command, "--model", model, "--quiet", *more], check=True)
    return time.perf_counter() - began


def results(out: Path) -> dict[str, object]:
    """Results by name, without what they cost."""
    found: dict[str, object] = {}
    for path in sorted(out.iterdir()):
        if path.suffix == ".json":
            found[path.name] = json.loads(path.read_text()) | {"stats": None}
        elif path.suffix != ".jsonl":
            found[path.name] = path.read_bytes()
    return found


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="tiny.en")
    parser.add_argument("--count", type=int, default=60, help="recordings")
    parser.add_argument("--seconds", type=float, default=20.0, help="mean length of a recording")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--at-least", type=float, default=0.9, help="ratio of the medians")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    given = arguments(argv)
    ways = {"local": [], "cluster": ["--cluster", "auto", "--workers", str(given.workers)]}
    rows: list[Row] = []
    texts: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="forescribe-") as name:
        folder = Path(name)
        audio_s = cut(folder, given.count, given.seconds)
        for number in range(given.repeats):
            for way, more in ways.items():
                out = folder / f"{way}-{number}"
                start_s = run(folder / "one", Path(f"{out}-one"), given.model, more)
                total_s = run(folder / "all", out, given.model, more)
                load = os.getloadavg()[0]
                rows.append(Row(way, number + 1, audio_s, start_s, total_s, load))
                texts.append(results(out))
                print(f"{way} {number + 1}: {rows[-1].speed:.1f}x", file=sys.stderr)
    equal = all(each == texts[0] for each in texts)
    speed = {w: statistics.median(r.speed for r in rows if r.way == w) for w in ways}
    ratio = speed["cluster"] / speed["local"]
    print("\n".join(layout([HEAD, *(row.cells() for row in rows)])))
    print(f"cluster / local: {ratio:.2f} (medians); results equal: {'yes' if equal else 'NO'}")
    if given.json is not None:
        record = provenance.record("benchmarks.speed.cluster") | {
            "rows": [asdict(row) | {"speed": row.speed, "whole": row.whole} for row in rows],
            "ratio": ratio,
            "equal": equal,
        }
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if equal and ratio >= given.at_least else 1


if __name__ == "__main__":
    raise SystemExit(main())
