"""A server of one's own for the walkthrough: `forescribe serve` in a process, until the block ends."""

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
def serving(model: str, *, patience_s: float = 600) -> Iterator[str]:
    """The address of a service that is ready. Raises RuntimeError with its last words where it ends
    before that, or takes longer than `patience_s`."""
    port = _free_port()
    command = [sys.executable, "-m", "forescribe", "serve", "--model", model, "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            end = time.monotonic() + patience_s
            while not _ready(url):
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    words = log.read().decode(errors="replace")[-800:]
                    raise RuntimeError(f"the service did not start: {words}")
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
