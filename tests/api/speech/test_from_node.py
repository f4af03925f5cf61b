"""The JavaScript of docs/from-openai.md, with OpenAI's own package and a certificate made here, against
`forescribe serve` as one process and as two."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import soundfile

from tests.api.conftest import SAMPLE, until
from tests.docs.pages import blocks

ROOT = Path(__file__).parents[3]
PAGE = "docs/from-openai.md"

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.network,
    pytest.mark.skipif(shutil.which("npm") is None, reason="there is no Node on this machine"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """With the packages, a certificate, and the recordings that the page names."""
    made = tmp_path_factory.mktemp("node")
    subprocess.run(["npm", "install", "--silent", "openai", "ws"], cwd=made, check=True)
    (command,) = [
        line
        for block in blocks("sh")
        if block.page == PAGE
        for line in block.text.splitlines()
        if line.startswith("openssl")
    ]
    subprocess.run(command.split(), cwd=made, check=True, capture_output=True)
    samples, rate = soundfile.read(SAMPLE, dtype="int16", stop=16_000 * 8)
    (made / "talk.pcm").write_bytes(samples.tobytes())
    soundfile.write(made / "meeting.mp3", samples, rate, format="WAV")
    return made


@contextmanager
def serving(folder: Path, workers: int, *options: str) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1] - workers
    given = {k: v for k, v in os.environ.items() if not k.startswith("FORESCRIBE_")}
    given |= {"FORESCRIBE_COMPILE": "never", "FORESCRIBE_SHARE_DEVICE": "true"}
    given |= {"FORESCRIBE_DATA_DIR": str(folder / f"data{workers}"), "FORESCRIBE_DEVICE": "cpu"}
    command = [sys.executable, "-m", "forescribe", "serve", "--model", "tiny.en", *options]
    command += ["--port", str(port), "--workers", str(workers)]
    scheme = "https" if options else "http"
    trusted = ssl.create_default_context(cafile=folder / "cert.pem")

    def ready(own: int) -> bool:
        assert running.poll() is None
        try:
            return client.get(f"{scheme}://localhost:{own}/ready").status_code == 200
        except httpx.TransportError:
            return False

    with (
        httpx.Client(verify=trusted, trust_env=False) as client,
        subprocess.Popen(command, cwd=ROOT, env=given, stderr=subprocess.DEVNULL) as running,
    ):
        try:
            own = range(port + 1, port + 1 + workers) if workers > 1 else [port]
            until(lambda: all(map(ready, own)), 240)
            yield port
        finally:
            running.terminate()


def run(folder: Path, text: str, port: int, *, tls: bool) -> str:
    script = folder / "script.mjs"
    if tls:
        text = text.replace("http://localhost", "https://localhost")
    script.write_text(text.replace("localhost:8000", f"localhost:{port}"))
    env = {**os.environ, "NODE_EXTRA_CA_CERTS": "cert.pem"}
    done = subprocess.run(
        ["node", script.name], cwd=folder, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("workers", [1, 2])
def test_uploads_streams_and_live_sessions_over_tls(folder: Path, workers: int) -> None:
    upload, live, _ = (block.text for block in blocks("js") if block.page == PAGE)
    with serving(
        folder, workers, "--ssl-certfile", str(folder / "cert.pem"),
        "--ssl-keyfile", str(folder / "key.pem"),
    ) as port:  # fmt: skip
        text, subtitles = run(folder, upload, port, tls=True).split("\n", 1)
        assert "memo" in text and "-->" in subtitles and subtitles.endswith(text)
        assert "memo" in run(folder, live, port, tls=True)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://localhost:{port}/ready", trust_env=False)


def test_a_plain_socket_needs_no_certificate(folder: Path) -> None:
    _, live, plain = (block.text for block in blocks("js") if block.page == PAGE)
    events, _, _ = live.partition("const client")
    ends = 'socket.on("message", (m) => JSON.parse(m).transcript && socket.close());\n'
    with serving(folder, 1) as port:
        assert "memo" in run(folder, f"{events}\n{plain}\n{ends}", port, tls=False)
        with pytest.raises(AssertionError, match="wrong version number"):
            run(folder, live.replace("https:", "http:"), port, tls=False)
