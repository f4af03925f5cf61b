"""`forescribe serve --workers 2` for real: one port, uploads and a job, and an end at SIGTERM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.api.conftest import SAMPLE, TRANSCRIBE, until

ROOT = Path(__file__).parents[3]
START_S = 180.0

GIVEN = {"COMPILE": "never", "SHARE_DEVICE": "true", "DEVICE": "cpu", "ANNOUNCE_S": "0.1"}


def free_port() -> int:
    """With two above it, for the workers' own."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1] - 2


@pytest.mark.nightly  # CI runs the processes of `test_workers`
def test_two_workers_serve_uploads_and_jobs_on_one_port_and_end_at_a_signal(tmp_path) -> None:
    port = free_port()
    given = {k: v for k, v in os.environ.items() if not k.startswith("FORESCRIBE_")}
    given |= {f"FORESCRIBE_{name}": value for name, value in GIVEN.items()}
    given["FORESCRIBE_DATA_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "forescribe", "serve", "--workers", "2"]
    command += ["--model", "tiny.en", "--port", str(port)]
    client = httpx.Client(timeout=120, trust_env=False)
    url = f"http://127.0.0.1:{port}"

    def ready(own: int) -> bool:
        assert running.poll() is None
        try:
            return client.get(f"http://127.0.0.1:{own}/ready").status_code == 200
        except httpx.TransportError:
            return False

    with client, subprocess.Popen(command, cwd=ROOT, env=given, stderr=subprocess.PIPE) as running:
        try:
            until(lambda: ready(port + 1) and ready(port + 2), START_S)
            upload = {"files": {"file": SAMPLE.read_bytes()}, "data": {"model": "tiny.en"}}
            # Each answers at a port of its own too: what one accepts, the other shows.
            text = client.post(url + TRANSCRIBE, **upload).json()["text"]
            assert "memo" in text
            job = client.post(f"http://127.0.0.1:{port + 1}/v1/jobs", **upload).json()["id"]
            seen = f"http://127.0.0.1:{port + 2}/v1/jobs/{job}"
            until(lambda: client.get(seen).json()["state"] not in ("queued", "running"))
            assert client.get(f"{seen}/result").json()["text"] == text
            running.send_signal(signal.SIGTERM)
            _, errors = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == 0 and b"Traceback" not in errors, errors.decode()
