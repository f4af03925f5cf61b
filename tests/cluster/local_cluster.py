"""A Ray cluster of one machine for tests, found and ended by a token of its own.

with LocalCluster(cpus=2) as cluster:
    subprocess.run([..., "--cluster", cluster.address], env=cluster.environment)
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

START_S = 300.0


class LocalCluster:
    """`ray start --head` in the foreground. `more` are variables of all its processes."""

    def __init__(self, cpus: int, more: dict[str, str] | None = None) -> None:
        self.cpus = cpus
        # Short: the names of sockets are below it.
        self.folder = Path(tempfile.mkdtemp(prefix="fr", dir="/tmp"))
        self.token = secrets.token_hex(32)
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("RAY_")
        } | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            **(more or {}),
        }
        self.address = ""

    def __enter__(self) -> Self:
        """Ray's start fails now and then on a busy machine: three attempts, as the command makes."""
        for attempt in range(3):
            if self._start(attempt):
                return self
            self._end()
        log = self.log.read_text()
        self.__exit__(None, None, None)
        raise RuntimeError(f"Ray did not start: {log[-2000:]}")

    def _start(self, attempt: int) -> bool:
        self.log = self.folder / f"start-{attempt}.log"
        port = _free_port()
        self.client = f"ray://127.0.0.1:{port}"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "ray.scripts.scripts",
                    "start",
                    "--head",
                    "--block",
                    "--port=0",
                ]
                + [f"--num-cpus={self.cpus}", "--include-dashboard=false", "--disable-usage-stats"]
                + [f"--temp-dir={self.folder}", "--object-store-memory=100000000"]
                + [
                    "--min-worker-port=0",
                    "--max-worker-port=0",
                    f"--ray-client-server-port={port}",
                ],
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s and self.process.poll() is None:
            found = re.search(r"--address='([^']+)'", self.log.read_text())
            if found and "Ray runtime started" in self.log.read_text():
                self.address = found[1]
                return True
            time.sleep(0.5)
        return False

    def workers(self) -> list[int]:
        """The processes of our actors."""
        return self.titled("ray::MapWorker")

    def titled(self, title: str) -> list[int]:
        """The processes that call themselves so."""
        return [pid for pid in self.processes() if _title(pid).startswith(title)]

    def processes(self) -> list[int]:
        """All processes that hold the token."""
        mark = f"RAY_AUTH_TOKEN={self.token}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def __exit__(self, *_: object) -> None:
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self) -> None:
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        for _ in range(20):
            left = self.processes()
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.25)
        self.process.wait(20)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
