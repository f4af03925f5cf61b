"""An emulator of S3 as a process in an environment of its own, behind a proxy that can do damage.

moto and botocore want older packages than ours, so they are never installed beside them.
"""

from __future__ import annotations

import http.client
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[3]

MOTO = "moto[server]>=5.2,<6"

OK, SLOW_DOWN, RESET, CUT_OFF, EXPIRED = (
    "ok",
    "503",
    "reset",
    "cut off",
    "expired",
)

SLOW_DOWN_BODY = (
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
EXPIRED_BODY = (
    b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
)


@dataclass(frozen=True)
class Call:
    """A request as the proxy sees it; `key` is without the bucket."""

    method: str
    bucket: str
    key: str

    @property
    def reads_audio(self) -> bool:
        return self.method == "GET" and self.key.endswith((".wav", ".flac"))


@dataclass
class S3:
    """The emulator. `fate` decides what becomes of each request; `calls` counts them."""

    port: int = 0
    inner: int = 0
    fate: Callable[[Call], str] = lambda call: OK
    calls: Counter[Call] = field(default_factory=Counter)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
            "AWS_REGION": "us-east-1",
        }

    def audio_read(self) -> int:
        return sum(count for call, count in self.calls.items() if call.reads_audio)

    def make_bucket(self, name: str) -> None:
        url = f"http://127.0.0.1:{self.inner}/{name}"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=60).close()


def moto_environment(folder: Path) -> Path:
    """Install moto; skips the test where no index can be reached."""
    uv = shutil.which("uv") or str(ROOT / ".uv" / "bin" / "uv")
    if not os.access(uv, os.X_OK):
        pytest.skip("uv is not installed: an environment for the emulator cannot be made")
    environment = {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"}
    for arguments in (
        ["venv", "--quiet", "--python", sys.executable, str(folder)],
        ["pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), MOTO],
    ):
        done = subprocess.run(
            [uv, *arguments], env=environment, capture_output=True, text=True, timeout=600
        )
        if done.returncode:
            pytest.skip(f"the emulator cannot be installed: {done.stderr.strip()[-200:]}")
    return folder


@contextmanager
def running(folder: Path) -> Iterator[S3]:
    """The emulator and its proxy, as long as the context lasts."""
    port = _free_port()
    log = (folder / "moto.log").open("wb")
    process = subprocess.Popen(
        [folder / "bin" / "moto_server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=log,
        stderr=log,
        env={"PATH": os.environ["PATH"]},
    )
    try:
        _wait_for(port, process)
        s3 = S3(inner=port)
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(s3))
        server.daemon_threads = True
        s3.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        try:
            yield s3
        finally:
            server.shutdown()
            server.server_close()
    finally:
        process.kill()
        process.wait()
        log.close()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, "the emulator has ended"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the emulator does not answer")


def _handler(s3: S3) -> type[BaseHTTPRequestHandler]:
    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except (ConnectionError, BrokenPipeError):
                self.close_connection = True

        def _pass_on(self) -> None:
            path = unquote(self.path.partition("?")[0]).lstrip("/")
            bucket, _, key = path.partition("/")
            call = Call(self.command, bucket, key)
            s3.calls[call] += 1
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            fate = s3.fate(call)
            if fate == SLOW_DOWN:
                return self._answer(503, SLOW_DOWN_BODY)
            if fate == EXPIRED:
                return self._answer(400, EXPIRED_BODY)
            if fate == RESET and random.random() < 0.5:  # before it is done, or after
                return self._break_off()
            inner = http.client.HTTPConnection("127.0.0.1", s3.inner, timeout=60)
            headers = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
            inner.request(self.command, self.path, body, headers)
            answer = inner.getresponse()
            data = answer.read()
            inner.close()
            if fate == RESET:
                return self._break_off()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in (
                    "connection",
                    "transfer-encoding",
                    "content-length",
                    "server",
                    "date",
                ):
                    self.send_header(name, value)
            length = (
                answer.getheader("content-length") if self.command == "HEAD" else str(len(data))
            )
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            if fate == CUT_OFF and len(data) > 1:
                self.wfile.write(data[: len(data) // 2])
                return self._break_off()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _break_off(self) -> None:
            self.close_connection = True
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Proxy
