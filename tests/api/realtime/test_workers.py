"""Live sessions of a service with several workers: each serves those that reach it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from forescribe.asr.audio.reading import read_audio
from tests.api.conftest import until
from tests.api.realtime.sockets import TRANSCRIPT, pcm
from tests.api.test_wyoming import Client

ROOT = Path(__file__).parents[3]
LIVE = "forescribe_live_streams "


@pytest.fixture
def service(tmp_path) -> Iterator[tuple[int, SimpleQueue[dict[str, Any]]]]:
    """Two workers with a session each, and their log."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    options = ["--model", "tiny.en", "--draft", "none", "--port", port, "--wyoming", "0"]
    command = [sys.executable, "-P", "-m", "forescribe", "serve", "--workers", "2", *options]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FORESCRIBE_")}
    environment |= {
        "FORESCRIBE_DATA_DIR": str(tmp_path),
        "FORESCRIBE_MAX_STREAMS": "1",
        "FORESCRIBE_SHARE_DEVICE": "1",
    }
    logged: SimpleQueue[dict[str, Any]] = SimpleQueue()
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, start_new_session=True
    ) as server:

        def read() -> None:
            for line in server.stderr or ():
                with suppress(ValueError):
                    logged.put(json.loads(line[line.index(b"{") :]))

        Thread(target=read, daemon=True).start()
        try:
            yield int(port), logged
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


def opened(address: str) -> ClientConnection:
    """A session of a worker that has none yet."""
    while True:
        with suppress(InvalidStatus):
            return connect(f"ws://{address}/v1/realtime?intent=transcription")


@pytest.mark.nightly
def test_two_workers_serve_two_sessions_and_one_of_them_wyoming(service) -> None:
    port, logged = service
    address = f"127.0.0.1:{port}"
    samples = read_audio(ROOT / "samples" / "memo.flac")[: 4 * 16_000]
    while (event := logged.get(timeout=100)).get("event") != "wyoming":
        pass
    with socket.create_connection(("127.0.0.1", event["port"]), timeout=100) as told:
        client = Client(told)  # it was bound when it was told
        client.send("ping")
        assert client.next() == ("pong", {})

    def metrics(worker: int) -> str:
        url = f"http://127.0.0.1:{port + 1 + worker}/metrics"
        return httpx.get(url, trust_env=False).text

    until(lambda: all("forescribe_ready 1" in metrics(n) for n in (0, 1)), 300)
    with ExitStack() as stack:
        sessions = [stack.enter_context(opened(address)) for _ in range(2)]
        until(lambda: all(f"{LIVE}1" in metrics(n) for n in (0, 1)))
        for session in sessions:
            form = {"type": "audio/pcm", "rate": 16_000}
            config = {"type": "transcription", "audio": {"input": {"format": form}}}
            session.send(json.dumps({"type": "session.update", "session": config}))
            session.send(json.dumps({"type": "input_audio_buffer.append", "audio": pcm(samples)}))
            session.send(json.dumps({"type": "input_audio_buffer.commit"}))
        said = []
        for session in sessions:
            while (message := json.loads(session.recv(120)))["type"] != f"{TRANSCRIPT}.completed":
                assert message["type"] != "error", message
            said.append(message["transcript"])
    assert said[0] == said[1] and "short memo" in said[0]
    until(lambda: all(f"{LIVE}0" in metrics(n) for n in (0, 1)))
    with socket.create_connection(("127.0.0.1", event["port"]), timeout=120) as spoken:
        client = Client(spoken)
        client.speak((samples * 32767).astype("<i2").tobytes())
        assert client.answer()[0]["text"] == said[0]
    assert "forescribe_live_items_total{" in metrics(0)
