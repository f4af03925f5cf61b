"""A browser, something to play, and what people do with the page."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from forescribe.asr.formats.transcript import Transcript
from tests import browser as browsing
from tests.api.page.fakejobs import conversation, transcript

browser = browsing.browser

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tone(tmp_path_factory) -> Path:
    """Half a minute to play."""
    path = tmp_path_factory.mktemp("audio") / "tone.wav"
    soundfile.write(path, 0.1 * np.sin(np.arange(8000 * 30) * 0.2), 8000)
    return path


def walk(turns: int = 5) -> Transcript:
    return transcript(conversation(turns))


def send(page: Any, path: Path, name: str | None = None) -> None:
    file = {"name": name or path.name, "mimeType": "audio/wav", "buffer": path.read_bytes()}
    page.locator("#files").set_input_files([file])


def lines(page: Any) -> str:
    return re.sub(r"\s+", " ", page.locator(".transcript").inner_text())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def listens(port: int) -> bool:
    """Whether somebody does, at this port."""
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def served(port: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The real service with the demo pair; killed, with all its children, at the end."""
    command = [
        sys.executable,
        "-m",
        "forescribe",
        "serve",
        "--model",
        "tiny.en",
        "--port",
        str(port),
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FORESCRIBE_")}
    environment["FORESCRIBE_DATA_DIR"] = str(folder)
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL, start_new_session=True
    ) as server:
        try:
            yield server
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
