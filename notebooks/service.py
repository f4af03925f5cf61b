"""A server for the walkthrough: `forescribe serve` in a process of its own, until the block ends."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving(model: str, *, timeout_s: float = 600) -> Iterator[str]:
    """Yield the address of a running service. Raises RuntimeError with the end of its log if it exits
    during startup or takes longer than `timeout_s`."""
    port = _free_port()
    command = [sys.executable, "-m", "forescribe", "serve", "--model", model, "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            end = time.monotonic() + timeout_s
            while not _ready(url):
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    tail = log.read().decode(errors="replace")[-800:]
                    raise RuntimeError(f"the service did not start: {tail}")
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
