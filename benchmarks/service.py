"""The service under load, compared with the batch command on the same recordings and weights.

    python -m benchmarks.service --model tiny.en --clients 1 8 32 --json load.json

Starts a server process and sends recordings of 2 to 60 s, cut from the samples, over the loopback network.
Each of the concurrent clients sends its next recording after the answer to the last one. The batch
command's engine decodes the same files first. Prints throughput as a share of the batch command's,
latencies, refused requests, equality of the texts, and the memory of the server's process.

Exit status: 0; 1 if a text differs or the share with the most clients is below --least; 2 if nothing
could be measured. Run it on an idle machine; clients and server share its cores.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import queue
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import numpy as np
import soundfile

from benchmarks import provenance
from benchmarks.rows import layout
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.decode.options import Guards, Options
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.errors import ForescribeError
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE

LENGTHS_S = (2.0, 4.0, 7.0, 12.0, 20.0, 29.0, 45.0, 60.0)
"""Lengths of the recordings, in turn. Most are one window long, some two or three."""

LEAST = 0.85
START_S = 1200.0
HEAD = (
    "clients",
    "wall s",
    "x real time",
    "of batch",
    "p50 s",
    "p95 s",
    "p99 s",
    "longest s",
    "turned away",
    "equal",
)


@dataclass(frozen=True)
class Clip:
    """A recording to send."""

    name: str
    data: bytes
    seconds: float


@dataclass(frozen=True)
class Answer:
    clip: Clip
    text: str
    latency_s: float  # from the start of the first try, with waits
    refusals: tuple[int, ...]  # status codes before it was accepted


@dataclass(frozen=True)
class Row:
    """The result for one number of clients."""

    clients: int
    wall_s: float
    audio_s: float
    share: float
    latencies_s: tuple[float, ...]
    refusals: dict[int, int]
    equal: int
    of: int

    def at(self, share: float) -> float:
        """The latency quantile."""
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def cells(self) -> tuple[str, ...]:
        away = ", ".join(f"{count} x {status}" for status, count in self.refusals.items())
        return (
            str(self.clients),
            f"{self.wall_s:.2f}",
            f"{self.audio_s / self.wall_s:.1f}",
            f"{self.share:.0%}",
            *(f"{self.at(share):.2f}" for share in (0.5, 0.95, 0.99)),
            f"{max(self.latencies_s):.2f}",
            away or "0",
            f"{self.equal} of {self.of}",
        )


def clips(
    sources: Sequence[Path], count: int, lengths_s: Sequence[float] = LENGTHS_S
) -> list[Clip]:
    """Cut consecutive pieces from the recordings, repeating them as needed, as FLAC."""
    whole = np.concatenate([read_audio(source) for source in sources])
    found, at = [], 0
    for number, length_s in zip(range(count), itertools.cycle(lengths_s), strict=False):
        take = np.arange(at, at + round(length_s * SAMPLE_RATE)) % len(whole)
        at = int(take[-1]) + 1
        file = io.BytesIO()
        soundfile.write(file, whole[take], SAMPLE_RATE, format="FLAC", subtype="PCM_16")
        found.append(Clip(f"{number:03}", file.getvalue(), length_s))
    return found


def batch(
    transcriber: Transcriber, work: Sequence[Clip], options: Options
) -> tuple[float, dict[str, str]]:
    """Decode all files in one call, as the batch command does. Returns seconds and texts by name.
    Raises the error of a recording."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for clip in work:
            paths.append(Path(folder) / f"{clip.name}.flac")
            paths[-1].write_bytes(clip.data)
        start = time.perf_counter()
        outcomes = list(transcriber.transcribe(paths, options))
        wall_s = time.perf_counter() - start
    texts = {}
    for outcome in outcomes:
        if outcome.transcript is None:
            assert outcome.error is not None
            raise outcome.error
        texts[Path(outcome.name).stem] = outcome.transcript.text
    return wall_s, texts


@contextmanager
def served(arguments: Sequence[str], settings: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Run a server until the block ends. Yields its address and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = {f"FORESCRIBE_{name.upper()}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "forescribe", "serve", "--port", str(port), *arguments]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, cwd=provenance.ROOT, env={**os.environ, **given}, stderr=log
        )
        try:
            _ready(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}", process.pid
        except ServerError:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-4000:])
            raise
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class ServerError(Exception):
    """The server does not start, or fails."""


def _ready(address: str, process: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        if process.poll() is not None:
            raise ServerError(f"the server ended with {process.returncode}")
        try:
            if httpx.get(f"{address}/ready", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise ServerError(f"the server was not ready within {START_S:g} s")


def load(
    address: str, work: Sequence[Clip], clients: int, fields: dict[str, str]
) -> tuple[float, list[Answer]]:
    """Send all clips with concurrent clients. Returns seconds, and answers in order of completion."""
    waiting: queue.SimpleQueue[Clip] = queue.SimpleQueue()
    for clip in work:
        waiting.put(clip)
    done: list[Answer] = []
    failed: list[BaseException] = []

    def client() -> None:
        try:
            with httpx.Client(base_url=address, timeout=None, trust_env=False) as http:
                while not failed:
                    try:
                        clip = waiting.get_nowait()
                    except queue.Empty:
                        return
                    done.append(_sent(http, clip, fields))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall_s = time.perf_counter() - start
    if failed:
        raise ServerError(f"{type(failed[0]).__name__}: {failed[0]}") from failed[0]
    return wall_s, done


def _sent(http: httpx.Client, clip: Clip, fields: dict[str, str]) -> Answer:
    refusals: list[int] = []
    start = time.perf_counter()
    while True:
        files = {"file": (f"{clip.name}.flac", clip.data)}
        answer = http.post("/v1/audio/transcriptions", files=files, data=fields)
        if answer.status_code == 200:
            latency_s = time.perf_counter() - start
            return Answer(clip, answer.json()["text"], latency_s, tuple(refusals))
        if answer.status_code not in (429, 503):
            raise ServerError(f"{answer.status_code}: {answer.text[:200]}")
        refusals.append(answer.status_code)
        time.sleep(float(answer.headers["retry-after"]))


def measured(
    address: str,
    work: Sequence[Clip],
    clients: int,
    fields: dict[str, str],
    batch_s: float,
    texts: dict[str, str],
) -> Row:
    wall_s, answers = load(address, work, clients, fields)
    refusals = Counter(status for answer in answers for status in answer.refusals)
    return Row(
        clients=clients,
        wall_s=wall_s,
        audio_s=sum(clip.seconds for clip in work),
        share=batch_s / wall_s,
        latencies_s=tuple(answer.latency_s for answer in answers),
        refusals=dict(refusals),
        equal=sum(answer.text == texts[answer.clip.name] for answer in answers),
        of=len(work),
    )


def resident_mb(process: int) -> int:
    """The memory of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1000


def table(rows: Sequence[Row], batch_s: float) -> str:
    lines = layout([HEAD, *(row.cells() for row in rows)])
    audio_s = rows[0].audio_s
    lines.append(f"batch command: {batch_s:.2f} s, {audio_s / batch_s:.1f} x real time")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.service",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="tiny.en")
    parser.add_argument("--draft")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batch", type=int, default=8, metavar="N")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32], metavar="N")
    parser.add_argument("--requests", type=int, default=64, metavar="N", help="for each load")
    parser.add_argument("--lengths", type=float, nargs="+", default=list(LENGTHS_S), metavar="S")
    parser.add_argument("--language", default="en")
    parser.add_argument(
        "--no-vad", action="store_true", help="of sounds without a voice, decode all of it"
    )
    parser.add_argument("--least", type=float, default=LEAST, metavar="SHARE")
    parser.add_argument(
        "--repeats",
        type=int,
        default=2,
        metavar="N",
        help="runs of the batch command; the fastest counts",
    )
    parser.add_argument(
        "--setting",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting of the server, such as max_requests=8",
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "audio", type=Path, nargs="*", help="recordings to cut from  [default: samples]"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    sources = given.audio or sorted((provenance.ROOT / "samples").glob("*.flac"))
    work = clips(sources, given.requests, given.lengths)
    options = Options(language=given.language, vad=not given.no_vad, guards=Guards())
    try:
        transcriber = Transcriber.load(
            given.model, given.draft, device=given.device, dtype=given.dtype, batch=given.batch
        )
        batch(transcriber, work[: 2 * given.batch], options)  # warm-up
        runs = [batch(transcriber, work, options) for _ in range(given.repeats)]
        batch_s, texts = min(run[0] for run in runs), runs[0][1]
        del transcriber  # releases memory and threads for the server
        command = ["--model", given.model, "--device", given.device, "--dtype", given.dtype]
        command += ["--batch-size", str(given.batch)]
        command += ["--draft", given.draft] if given.draft else []
        settings = {
            "jobs": "false",
            "aliases": '["load"]',
            **dict(s.split("=", 1) for s in given.setting),
        }
        fields = {"model": "load", "language": given.language}
        fields |= {"vad_filter": "false"} if given.no_vad else {}
        rows = []
        with served(command, settings) as (address, process):
            memory = [(0, resident_mb(process))]  # after so many uploads
            load(address, warm := work[: 2 * given.batch], given.batch, fields)
            memory.append((len(warm), resident_mb(process)))
            for clients in given.clients:
                row = measured(address, work, clients, fields, batch_s, texts)
                rows.append(row)
                memory.append((memory[-1][0] + len(work), resident_mb(process)))
                print(f"{clients} clients: {row.wall_s:.2f} s", file=sys.stderr)
    except (ForescribeError, ServerError) as error:
        print(f"nothing measured: {error}", file=sys.stderr)
        return 2
    print(table(rows, batch_s))
    print("server:", ", ".join(f"{mb} MB after {uploads} uploads" for uploads, mb in memory))
    if given.json:
        shown = [{**asdict(row), "p50_s": row.at(0.5), "p95_s": row.at(0.95)} for row in rows]
        record = {
            **provenance.record("benchmarks.service"),
            "batch_s": [run[0] for run in runs],
            "audio_s": rows[0].audio_s,
            "mean_length_s": statistics.fmean(clip.seconds for clip in work),
            "rows": shown,
            "memory_mb": memory,
        }
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    most = max(rows, key=lambda row: row.clients)
    return int(any(row.equal < row.of for row in rows) or most.share < given.least)


if __name__ == "__main__":
    sys.exit(main())
