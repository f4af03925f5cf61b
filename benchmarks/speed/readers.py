"""How fast recordings are decoded and cut into windows, in this process and in readers.

    python -m benchmarks.speed.readers --json readers.json

`--audio` is joined to `--minutes` and stored as flac (16 kHz), mp3 and m4a (44.1 kHz). Each of them is
read `--count` times as the first stage of `forescribe transcribe` reads it, with every number of
`--readers`; 0 reads in the process of the model. Processor time counts all processes; "model's process"
is the part that the model cannot use. Hashes for the comparison are included. Exit status: 0; 1 if
windows or samples differ from those of the first number of readers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import av
import numpy as np
import soxr
from av import AudioStream
from numpy.typing import NDArray

from benchmarks import provenance
from benchmarks.rows import layout
from forescribe.asr.audio.fork_server import Cutting
from forescribe.asr.audio.reading import Recording, open_audio, read_audio
from forescribe.asr.segment.cut_plan import Plan, planned_windows
from forescribe.asr.segment.vad import SileroDetector
from forescribe.asr.segment.windows import cut
from forescribe.asr.sessions.readers import ReaderPool

CODECS = {
    "flac": ("flac", 16_000, "s16"),
    "mp3": ("libmp3lame", 44_100, "fltp"),
    "m4a": ("aac", 44_100, "fltp"),
}
BITS = 64_000
HEAD = (
    "format",
    "readers",
    "audio h",
    "x real time",
    "h per core-hour",
    "model's process",
    "own MB",
    "spool MB",
    "equal",
)


@dataclass(frozen=True)
class Row:
    """One run. `processor_s` is that of all processes, `here_s` that of this one."""

    kind: str
    readers: int
    audio_s: float
    wall_s: float
    processor_s: float
    here_s: float
    own_mb: float  # private memory of this process at the end
    spooled: int  # bytes, the most at a time
    digest: str

    def cells(self, expected: str) -> list[str]:
        return [
            self.kind,
            str(self.readers),
            f"{self.audio_s / 3600:.2f}",
            f"{self.audio_s / self.wall_s:.0f}",
            f"{self.audio_s / self.processor_s:.0f}",
            f"{100 * self.here_s / self.processor_s:.0f}%",
            f"{self.own_mb:.0f}",
            f"{self.spooled / 1e6:.0f}",
            "yes" if self.digest == expected else "NO",
        ]


def encoded(samples: NDArray[np.float32], kind: str, path: Path) -> str:
    """The samples [T] at 16 kHz, stored in a format."""
    codec, rate, layout_of = CODECS[kind]
    own = soxr.resample(samples, 16_000, rate) if rate != 16_000 else samples
    if layout_of == "s16":
        own = np.round(own * 32767).astype(np.int16)
    with av.open(str(path), "w") as container:
        stream = cast(AudioStream, container.add_stream(codec, rate=rate))
        stream.layout, stream.bit_rate = "mono", BITS
        for at in range(0, len(own), 1152):
            frame = av.AudioFrame.from_ndarray(own[None, at : at + 1152], layout_of, "mono")
            frame.sample_rate, frame.pts = rate, at
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return str(path)


def measured(path: str, kind: str, readers: int, count: int, detector: SileroDetector) -> Row:
    """Reads a file `count` times."""
    digest, samples, spooled = hashlib.sha256(), 0, 0
    before, here, began = _processor_s(), time.process_time(), time.perf_counter()

    def take(recording: Recording) -> None:
        nonlocal samples
        windows = (
            cut(recording.blocks(), detector)
            if recording.spans is None
            else planned_windows(recording.blocks(), Plan(recording.spans))
        )
        for window in windows:
            digest.update(f"{window.start} {window.end} {window.speech}".encode())
            digest.update(window.samples.tobytes())
            samples += window.length

    paths = [path] * count
    if readers == 0:
        for own in paths:
            with open_audio(own) as recording:
                take(recording)
    else:
        with ReaderPool(readers, Cutting()) as pool:
            for source in pool.ahead(paths):
                spooled = max(spooled, pool.used_bytes)
                with pool.open(source) as recording:
                    take(recording)
    wall, here = time.perf_counter() - began, time.process_time() - here
    spent = _processor_s() - before
    return Row(
        kind, readers, samples / 16_000, wall, spent, here, _own_mb(), spooled, digest.hexdigest()
    )


def _processor_s() -> float:
    """Of this process and of all that have ended below it."""
    whole = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in whole)


def _own_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1000
    raise RuntimeError("/proc/self/status has no RssAnon")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.readers")
    parser.add_argument(
        "--audio", nargs="+", default=[str(p) for p in sorted(Path("samples").glob("*.flac"))]
    )
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--count", type=int, default=10, help="times that each file is read")
    parser.add_argument("--readers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    import torch

    torch.set_num_threads(1)  # as readers do
    once = np.concatenate([read_audio(path) for path in chosen.audio])
    samples = np.resize(once, round(chosen.minutes * 60 * 16_000))
    detector, rows, failed = SileroDetector(), [], False
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in CODECS:
            path = encoded(samples, kind, Path(folder) / f"a.{kind}")
            runs = [measured(path, kind, n, chosen.count, detector) for n in chosen.readers]
            rows += runs
            lines += [row.cells(runs[0].digest) for row in runs]
            failed |= any(row.digest != runs[0].digest for row in runs)
    print("\n".join(layout([HEAD, *lines])))
    if chosen.json is not None:
        record = provenance.record("benchmarks.speed.readers")
        record |= {"benchmark": "readers", "rows": [asdict(row) for row in rows]}
        chosen.json.write_text(json.dumps(record) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
