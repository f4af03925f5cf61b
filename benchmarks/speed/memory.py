"""Peak resident memory of `forescribe transcribe` on a long recording and on a short one.

    python -m benchmarks.speed.memory --json memory.json

Both are generated alike: every ten minutes contain all of `--audio` once, and background noise for the
rest. Each is transcribed in a separate process. Exit status: 0; 1 if the long recording needs more than
`--bound` MB of private memory beyond the short one; 2 if nothing was transcribed.

Private memory is memory that no file backs. The peak also counts pages of libraries, which vary: while
torch is unloaded at the end there are 130 MB more of them, which may or may not be sampled.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from benchmarks import provenance
from benchmarks.rows import layout

RATE = 16_000
CYCLE_S = 600
PAUSE_S = 1.0
ROOM = 1e-4  # of full scale; digital silence would be no room
LOOK_S = 0.1
HEAD = (
    "recording",
    "minutes",
    "with speech",
    "words",
    "wall s",
    "x real time",
    "peak MB",
    "own MB",
)


@dataclass(frozen=True)
class Usage:
    """A process's resident memory. `peak_bytes` is the kernel's, `own_bytes` the most without files at
    any look; `resident` are megabytes, one look a minute: a leak is a slope."""

    peak_bytes: int
    own_bytes: int
    resident: list[int]


@dataclass(frozen=True)
class Measured(Usage):
    """One recording's run."""

    minutes: float
    speech_minutes: float
    words: int
    wall_s: float


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.memory", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    samples = sorted((provenance.ROOT / "samples").glob("*.flac"))
    add("--model", default="tiny.en", help="preset, hub id in the cache, or folder")
    add("--audio", nargs="+", type=Path, default=samples, metavar="FILE", help="mono, 16 kHz")
    add("--minutes", nargs=2, type=float, default=[10, 600], metavar=("SHORT", "LONG"))
    add("--bound", type=float, default=200, help="MB")
    add("--json", type=Path, metavar="FILE", help="where the record goes")
    add("--with", nargs=argparse.REMAINDER, dest="extra", default=[], help="more options, last")
    return parser.parse_args(arguments)


def cycle(paths: Sequence[Path]) -> tuple[NDArray[np.float32], float]:
    """Ten minutes of samples, and how many seconds of them are recordings.

    Raises ValueError where they are longer, or not at 16 kHz.
    """
    rng = np.random.default_rng(0)
    room = (ROOM * rng.standard_normal(CYCLE_S * RATE)).astype(np.float32)
    at = 0
    for path in paths:
        samples, rate = soundfile.read(path, dtype="float32")
        if rate != RATE or samples.ndim != 1 or at + len(samples) > len(room):
            raise ValueError(f"{path} is not mono at 16 kHz, or too long for {CYCLE_S} s")
        room[at : at + len(samples)] += samples
        at += len(samples) + round(PAUSE_S * RATE)
    return room.clip(-1, 1), at / RATE


def write(path: Path, minutes: float, period: NDArray[np.float32]) -> None:
    """A flac of that length; block by block, so that this process stays small."""
    left = round(minutes * 60 * RATE)
    with soundfile.SoundFile(path, "w", RATE, 1, "PCM_16", format="FLAC") as file:
        while left > 0:
            file.write(period[:left])
            left -= len(period)


def command(audio: Path, out: Path, model: str, extra: Sequence[str]) -> list[str]:
    script = Path(sys.executable).with_name("forescribe")
    start = (
        [str(script)]
        if script.is_file()
        else [sys.executable, "-c", "from forescribe.cli.main import main; main()"]
    )
    return [*start, "transcribe", str(audio), "-o", str(out), "--model", model, "-q", *extra]  # fmt: skip


def run(arguments: Sequence[str]) -> tuple[int, Usage]:
    """Exit status, and what the process took."""
    process = subprocess.Popen(arguments)
    watch = Watch(process.pid)
    while process.poll() is None:
        watch.look()
        time.sleep(LOOK_S)
    return process.returncode, watch.usage


class Watch:
    """Looks at a process, and keeps the most that was seen. The peak is VmHWM, which the kernel itself
    keeps; there is no such thing for what is its own."""

    def __init__(self, pid: int) -> None:
        self.status = Path(f"/proc/{pid}/status")
        self.peak, self.own, self.resident = 0, 0, list[int]()
        self.started = time.monotonic()

    @property
    def usage(self) -> Usage:
        return Usage(self.peak, self.own, self.resident)

    def look(self) -> None:
        sizes = dict(self._sizes())
        self.peak = max(self.peak, sizes.get("VmHWM", 0))
        self.own = max(self.own, sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0))
        if time.monotonic() - self.started >= 60 * len(self.resident) and "VmRSS" in sizes:
            self.resident.append(sizes["VmRSS"] // 10**6)

    def _sizes(self) -> Iterator[tuple[str, int]]:
        try:
            lines = self.status.read_text().splitlines()
        except OSError:  # it has just ended
            return
        for line in lines:
            name, _, rest = line.partition(":")
            if name in ("VmHWM", "VmRSS", "RssAnon", "RssShmem"):
                yield name, int(rest.split()[0]) * 1024


def measure(
    minutes: float, period: NDArray[np.float32], speech_s: float, options: argparse.Namespace
) -> Measured:
    """Raises RuntimeError where the command fails, or writes no word."""
    with tempfile.TemporaryDirectory() as scratch:
        audio, out = Path(scratch) / "recording.flac", Path(scratch) / "out"
        write(audio, minutes, period)
        started = time.perf_counter()
        status, usage = run(command(audio, out, options.model, options.extra))
        wall = time.perf_counter() - started
        if status:
            raise RuntimeError(f"forescribe ended with status {status} on {minutes:g} minutes")
        words = len((out / "recording.txt").read_text("utf-8").split())
    if not words:
        raise RuntimeError(f"no word was written for {minutes:g} minutes: nothing was measured")
    speech = minutes * min(1.0, speech_s / CYCLE_S)
    return Measured(
        **asdict(usage), minutes=minutes, speech_minutes=speech, words=words, wall_s=wall
    )


def table(rows: Sequence[Measured]) -> str:
    def cells(name: str, row: Measured) -> tuple[str, ...]:
        speed = 60 * row.minutes / row.wall_s
        figures = (f"{row.minutes:g}", f"{row.speech_minutes:.0f}", str(row.words))
        sizes = (f"{row.peak_bytes / 1e6:.0f}", f"{row.own_bytes / 1e6:.0f}")
        return (name, *figures, f"{row.wall_s:.0f}", f"{speed:.0f}", *sizes)

    names = ("short", "long")
    return "\n".join(layout([HEAD, *(cells(*pair) for pair in zip(names, rows, strict=True))]))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if not os.path.isdir("/proc/self"):
        print("benchmarks.speed.memory: only Linux tells a process's peak", file=sys.stderr)
        return 2
    try:
        period, speech_s = cycle(options.audio)
        rows = [measure(minutes, period, speech_s, options) for minutes in options.minutes]
    except (RuntimeError, ValueError) as error:
        print(f"benchmarks.speed.memory: {error}", file=sys.stderr)
        return 2
    more = (rows[1].own_bytes - rows[0].own_bytes) / 1e6
    print(table(rows))
    print(f"the long recording takes {more:+.0f} MB of its own, bound {options.bound:g} MB")
    if options.json is not None:
        record = provenance.record("benchmarks.speed.memory") | {"benchmark": "memory"}
        record |= {"model": options.model, "extra": options.extra, "bound_mb": options.bound}
        record |= {"rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(record) + "\n")
    return 0 if more <= options.bound else 1


if __name__ == "__main__":
    sys.exit(main())
