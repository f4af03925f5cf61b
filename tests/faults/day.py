"""A simulated day of a service: what it holds at the end is what it held after the first hour.

20,000 short uploads, 200 jobs and 50 live sessions, of which some break off at a random place. The model's
answers are kept (`tests.faults.replayed`), everything else is real.
"""

from __future__ import annotations

import base64
import json
import os
import random
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import soundfile
from websockets.sync.client import connect

from tests.faults.harness import START_S, Server, family, holds, memory_mb, until

ROOT = Path(__file__).parents[2]
RATE = 16_000

UPLOADS, JOBS, SESSIONS, CLIENTS = 20_000, 200, 50, 8
BROKEN = 0.05
"""The share of uploads and sessions that break off."""

POOLED = 16
"""Threads, and files of connections, by which pools may still grow after the first hour."""

QUIET_S = 5.0
"""Without work, before what is held is counted."""


@dataclass(frozen=True)
class Held:
    """By the service and its child processes."""

    memory_mb: float
    processes: int
    threads: int
    descriptors: int
    sockets: int
    files: int  # of data and of work
    rows: int


class Replayed(Server):
    """`tests.faults.replayed`; its files are in `folder`."""

    recordings: tuple[str, ...] = ()

    def start(
        self, *options: str, env: Mapping[str, str] | None = None, alive: bool = True
    ) -> None:
        work = self.folder / "work"
        work.mkdir()
        program = [sys.executable, "-m", "tests.faults.replayed", str(self.folder), str(self.port)]
        self.process = subprocess.Popen(
            [*program, *self.recordings],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(work)},
        )
        until(self.alive, START_S, "the service does not start")
        until(lambda: self.http.get("/ready").status_code == 200, START_S, "it is not ready")

    def held(self) -> Held:
        own = family(self.pid)
        found = [path for path in self.folder.rglob("*") if path.is_file()]
        with sqlite3.connect(self.folder / "data" / "jobs.db", timeout=30) as db:
            tables = db.execute("select name from sqlite_master where type = 'table'").fetchall()
            rows = sum(
                db.execute(f"select count(*) from {name}").fetchone()[0] for (name,) in tables
            )
        return Held(
            memory_mb(self.pid),
            len(own),
            sum(one.num_threads() for one in own),
            sum(one.num_fds() for one in own),
            sum(len(one.net_connections("inet")) for one in own),
            len(found),
            rows,
        )


def live_a_day(share: float, rng: random.Random) -> str:
    """`share` of a day, at the pace that this machine has."""
    with _service() as (service, clips, long):
        first, rest = share / 24, share * 23 / 24
        told = Counter[str]()
        _live(service, clips, long, first, told, rng)
        morning = service.held()
        began = time.monotonic()
        _live(service, clips, long, rest, told, rng)
        took_s = time.monotonic() - began
        evening = service.held()
    for name in ("processes", "threads", "descriptors", "sockets", "files", "rows"):
        before, after = getattr(morning, name), getattr(evening, name)
        more = POOLED if name in ("threads", "descriptors") else 0
        holds(after <= before + more, f"{name}: {before} after an hour, {after} after the day")
    grown = evening.memory_mb / morning.memory_mb
    holds(grown <= 1.05, f"memory: {morning.memory_mb:.0f} MB, then {evening.memory_mb:.0f} MB")
    whole = ", ".join(f"{count} {what}" for what, count in sorted(told.items()))
    return f"{whole} in {took_s:.0f} s; after an hour {morning}, after the day {evening}"


@contextmanager
def _service() -> Iterator[tuple[Replayed, list[bytes], list[bytes]]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        samples, _ = soundfile.read(ROOT / "samples" / "memo.flac", dtype="int16")
        pieces = [samples[n * 4 * RATE : (n * 4 + 2 + n % 3) * RATE] for n in range(8)]
        pieces += [samples[: 45 * RATE], samples[5 * RATE :]]
        for n, piece in enumerate(pieces):
            soundfile.write(folder / f"{n}.flac", piece, RATE)
        kept = [folder / f"{n}.flac" for n in range(len(pieces))]
        service = Replayed(folder / "service")
        service.folder.mkdir()
        service.recordings = tuple(map(str, kept))
        stack.callback(service.http.close)
        stack.callback(service.stop)
        service.start()
        data = [path.read_bytes() for path in kept]
        yield service, data[:8], data[8:]


def _live(
    service: Replayed,
    clips: list[bytes],
    long: list[bytes],
    share: float,
    told: Counter[str],
    rng: random.Random,
) -> None:
    """A share of a day's work by several clients at once, and the quiet behind it."""
    kinds: list[tuple[int, Callable[[int], str]]] = [
        (UPLOADS, partial(_upload, service, clips)),
        (JOBS, partial(_job, service, long)),
        (SESSIONS, partial(_session, service)),
    ]
    work = [
        partial(act, rng.randrange(1 << 30))
        for count, act in kinds
        for _ in range(round(share * count))
    ]
    rng.shuffle(work)
    failed: list[BaseException] = []

    def client() -> None:
        while not failed:
            try:
                act = work.pop()
            except IndexError:
                return
            try:
                told[act()] += 1
            except BaseException as error:
                failed.append(error)

    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    if failed:
        raise failed[0]
    time.sleep(QUIET_S)


def _upload(service: Replayed, clips: list[bytes], seed: int) -> str:
    rng = random.Random(seed)
    data = rng.choice(clips)
    if rng.random() < BROKEN:
        return _broken(service, data, rng)
    files = {"file": ("a.flac", data)}
    answer = service.http.post("/v1/audio/transcriptions", files=files, data={"model": "whisper-1"})
    holds(answer.status_code == 200 and answer.json()["text"] != "", f"an upload: {answer.text}")
    return "uploads"


def _broken(service: Replayed, data: bytes, rng: random.Random) -> str:
    """An upload whose client goes away, in its body or before the answer."""
    request = httpx.Request("POST", f"{service.url}/v1/audio/transcriptions",
                            files={"file": ("a.flac", data)}, data={"model": "whisper-1"})  # fmt: skip
    body = request.read()
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    whole = f"POST /v1/audio/transcriptions HTTP/1.1\r\n{head}\r\n".encode() + body
    with socket.create_connection(("127.0.0.1", service.port)) as client:
        client.sendall(whole[: rng.randrange(1, 2 * len(whole))])
        time.sleep(rng.random() / 20)
    return "uploads broken off"


def _job(service: Replayed, long: list[bytes], seed: int) -> str:
    """It is deleted by its client, once it is read."""
    data = random.Random(seed).choice(long)
    made = service.http.post("/v1/jobs", files={"file": ("a.flac", data)})
    holds(made.status_code == 202, f"a job: {made.text}")
    id = made.json()["id"]
    job = service.ended(id)
    holds(job["state"] == "succeeded", f"a job is {job['state']}: {job['error']}")
    text = service.text(id)
    holds("per hour" in text, f"a job has another text: {text[:99]}")
    holds(service.http.delete(f"/v1/jobs/{id}").status_code == 204, "a job is not deleted")
    return "jobs"


def _session(service: Replayed, seed: int) -> str:
    """Ten seconds of a live session."""
    rng = random.Random(seed)
    samples, _ = soundfile.read(ROOT / "samples" / "memo.flac", dtype="int16", stop=10 * RATE)
    least = rng.randrange(100) if rng.random() < 4 * BROKEN else 101
    url = f"ws://127.0.0.1:{service.port}/v1/realtime?intent=transcription"
    with connect(url, compression=None, proxy=None) as session:
        rate = {"type": "audio/pcm", "rate": RATE}
        _say(session, "session.update", session={"audio": {"input": {"format": rate}}})
        for n in range(100):
            if n == least:
                session.socket.shutdown(socket.SHUT_RDWR)
                return "sessions broken off"
            piece = samples[n * RATE // 10 : (n + 1) * RATE // 10].tobytes()
            _say(session, "input_audio_buffer.append", audio=base64.b64encode(piece).decode())
            time.sleep(0.02)
        _say(session, "input_audio_buffer.commit")
        while not json.loads(session.recv(60))["type"].endswith("transcription.completed"):
            pass  # raises ConnectionClosed if the service ends it
    return "sessions"


def _say(client: Any, type: str, **fields: object) -> None:
    client.send(json.dumps({"type": type, **fields}))
