"""The server with a fake model, which all faults start, kill and restart.

    with server("--concurrency", "1") as s:
        s.start()
        id = s.submit("word", groups=3, pace_s=0.1).json()["id"]
        s.kill()
        s.start()
        holds(s.ended(id)["state"] == "succeeded", "the job is lost")

Knows nothing of the faults.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import psutil

START_S = 180.0
PATIENCE_S = 240.0

AGAIN_S = 15.0
"""How long a result may be answered with 503 after the storage came back: somebody may be waiting since
before, and others are let through every five seconds."""


class Wrong(Exception):
    """A requirement does not hold."""


class Inconclusive(Exception):
    """The fault interrupted no work."""


class NotRun(Exception):
    """The reason why a fault cannot be run on this machine."""


@dataclass(frozen=True)
class Row:
    """The result of a fault."""

    fault: str
    held: str  # yes, no, inconclusive, not run
    what: str
    wall_s: float = 0.0


class Server:
    """The server with a fake model; it keeps its data in a folder across restarts."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.folder, self.options, self.prefix, self.env = folder, options, prefix, env
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://{host}:{self.port}"
        # A kept connection may be closed by the server at any time.
        alone = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False, limits=alone)
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self, *options: str, env: Mapping[str, str] | None = None, alive: bool = True
    ) -> None:
        """Start the process; with `alive`, wait until it answers."""
        command = [sys.executable, "-m", "tests.faults.server", str(self.folder), str(self.port)]
        self.process = subprocess.Popen(
            [*self.prefix, *command, *self.options, *options],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "OMP_NUM_THREADS": "1", **self.env, **(env or {})},
        )
        if alive:
            until(self.alive, START_S, "the server does not start")

    def alive(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise Wrong(f"the server has ended with {self.process.returncode}")
        try:
            return self.http.get("/health").status_code == 200
        except httpx.HTTPError:
            return False

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()

    def submit(
        self, text: str, groups: int, pace_s: float, key: str | None = None, **fields: str
    ) -> httpx.Response:
        audio = json.dumps({"text": text, "groups": groups, "pace_s": pace_s}).encode()
        headers = {"Idempotency-Key": key} if key else {}
        return self.http.post(
            "/v1/jobs", files={"file": ("a.wav", audio)}, data=fields, headers=headers
        )

    def job(self, id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/v1/jobs/{id}").json()
        return found

    def ended(self, id: str, seconds: float = PATIENCE_S) -> dict[str, Any]:
        until(lambda: self.job(id)["finished_at"] is not None, seconds, f"{id} does not end")
        return self.job(id)

    def text(self, id: str) -> str:
        """Asked for again, as a client does, while the storage of results does not answer."""
        found: list[httpx.Response] = []

        def answered() -> bool:
            found[:] = [self.http.get(f"/v1/jobs/{id}/result")]
            return found[0].status_code != 503

        until(answered, AGAIN_S, f"{id}: no result but 503")
        return str(found[0].json().get("text"))

    def log(self) -> list[list[str]]:
        path = self.folder / "log"
        return [line.split() for line in path.read_text().splitlines()] if path.is_file() else []

    def rows(self, query: str) -> list[Any]:
        with sqlite3.connect(self.folder / "jobs.db", timeout=30) as db:
            return db.execute(query).fetchall()


def family(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def memory_mb(pid: int) -> float:
    """Of a process and all below it, without pages of files, which the kernel may drop."""
    total = 0
    for one in family(pid):
        with suppress(OSError):  # it has ended
            text = Path(f"/proc/{one.pid}/status").read_text()
            total += sum(int(n) for n in re.findall(r"^RssAnon:\s+(\d+)", text, re.MULTILINE))
    return total / 1e3


def until(holds: Callable[[], bool], seconds: float, otherwise: str) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise Wrong(otherwise)
        time.sleep(0.05)


@contextmanager
def server(*options: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        made = Server(Path(folder), *options)
        try:
            yield made
        finally:
            made.stop()
            made.http.close()


def right(text: str, groups: int) -> str:
    return "".join(f" {text} {k}." for k in range(groups)).strip()


def holds(claim: bool, otherwise: str) -> None:
    if not claim:
        raise Wrong(otherwise)
