"""An emulator of S3: as much of it as obstore uses, over HTTP, with damage on request."""

from __future__ import annotations

import random
import re
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

ROOT = Path(__file__).parents[3]

OK, SLOW_DOWN, RESET, CUT_OFF, EXPIRED = "ok", "503", "reset", "cut off", "expired"

WRITTEN = "Wed, 21 Oct 2026 07:28:00 GMT", "2026-10-21T07:28:00.000Z"
"""When everything was written, in the form of headers and of listings."""

Answer = tuple[int, dict[str, str], bytes]


@dataclass(frozen=True)
class Call:
    """A request; `key` is without the bucket."""

    method: str
    bucket: str
    key: str

    @property
    def reads_audio(self) -> bool:
        return self.method == "GET" and self.key.endswith((".wav", ".flac"))


@dataclass
class S3:
    """The emulator. `fate` decides what becomes of each request; `calls` counts them."""

    host: str = "127.0.0.1"
    port: int = 0
    fate: Callable[[Call], str] = lambda call: OK
    calls: Counter[Call] = field(default_factory=Counter)
    buckets: dict[str, dict[str, bytes]] = field(default_factory=dict)
    parts: defaultdict[str, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://{self.host}:{self.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
            "AWS_REGION": "us-east-1",
        }

    def audio_read(self) -> int:
        return sum(count for call, count in self.calls.items() if call.reads_audio)

    def make_bucket(self, name: str) -> None:
        self.buckets[name] = {}

    def answer(
        self, call: Call, query: dict[str, str], asked: dict[str, str], body: bytes
    ) -> Answer:
        """What S3 answers, without damage. `asked` are the headers of the request."""
        with self.lock:
            held = self.buckets.get(call.bucket)
            if held is None:
                return _refused(404, "NoSuchBucket")
            if call.method == "PUT" and "uploadId" in query:
                self.parts[query["uploadId"]][int(query["partNumber"])] = body
                return 200, {"ETag": _etag(body)}, b""
            if call.method == "PUT":
                if asked.get("if-none-match") == "*" and call.key in held:
                    return _refused(412, "PreconditionFailed")
                held[call.key] = body
                return 200, {"ETag": _etag(body)}, b""
            if call.method == "POST":
                return self._posted(call.key, held, query, body)
            if call.method == "DELETE":
                held.pop(call.key, None)
                return 204, {}, b""
            if "list-type" in query:
                return _listed(held, query.get("prefix", ""))
            if call.key not in held:
                return _refused(404, "NoSuchKey")
            data = held[call.key]
        headers = {"ETag": _etag(data), "Last-Modified": WRITTEN[0]}
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", asked.get("range", "")):
            start, size = int(found[1]), len(data)
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
            return 206, headers, data[start:]
        return 200, headers, data

    def _posted(
        self, key: str, held: dict[str, bytes], query: dict[str, str], body: bytes
    ) -> Answer:
        if "uploads" in query:
            return 200, {}, _xml("InitiateMultipartUploadResult", f"<UploadId>{key}</UploadId>")
        if "uploadId" in query:
            parts = self.parts.pop(query["uploadId"])
            held[key] = b"".join(parts[number] for number in sorted(parts))
            etag = f"<ETag>{escape(_etag(held[key]))}</ETag>"
            return 200, {}, _xml("CompleteMultipartUploadResult", etag)
        names = re.findall(r"<Key>(.*?)</Key>", body.decode())  # ?delete
        for name in names:
            held.pop(unescape(name), None)
        deleted = (f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
        return 200, {}, _xml("DeleteResult", "".join(deleted))


@contextmanager
def running(host: str = "127.0.0.1") -> Iterator[S3]:
    """The emulator, as long as the context lasts."""
    s3 = S3(host)
    server = ThreadingHTTPServer((host, 0), _handler(s3))
    server.daemon_threads = True
    s3.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    try:
        yield s3
    finally:
        server.shutdown()
        server.server_close()


def _etag(data: bytes) -> str:
    return f'"{md5(data, usedforsecurity=False).hexdigest()}"'


def _xml(name: str, text: str) -> bytes:
    return f'<?xml version="1.0"?><{name}>{text}</{name}>'.encode()


def _refused(status: int, code: str) -> Answer:
    return status, {}, _xml("Error", f"<Code>{code}</Code><Message>Of a test.</Message>")


def _listed(held: dict[str, bytes], prefix: str) -> Answer:
    objects = (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{WRITTEN[1]}</LastModified>"
        f"<ETag>{escape(_etag(data))}</ETag><Size>{len(data)}</Size></Contents>"
        for key, data in sorted(held.items())
        if key.startswith(prefix)
    )
    text = f"<Prefix>{escape(prefix)}</Prefix><IsTruncated>false</IsTruncated>{''.join(objects)}"
    return 200, {}, _xml("ListBucketResult", text)


def _handler(s3: S3) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:
                self.close_connection = True

        def _serve(self) -> None:
            url = urlsplit(self.path)
            bucket, _, key = unquote(url.path).lstrip("/").partition("/")
            query = {k: v[0] for k, v in parse_qs(url.query, keep_blank_values=True).items()}
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            call = Call(self.command, bucket, key)
            s3.calls[call] += 1
            fate = s3.fate(call)
            if fate == SLOW_DOWN:
                return self._send(*_refused(503, "SlowDown"))
            if fate == EXPIRED:
                return self._send(*_refused(400, "ExpiredToken"))
            if fate == RESET and random.random() < 0.5:  # before it is done, or after
                return self._break_off()
            asked = {name.lower(): value for name, value in self.headers.items()}
            status, headers, data = s3.answer(call, query, asked, body)
            if fate == RESET:
                return self._break_off()
            self._send(status, headers, data, cut_off=fate == CUT_OFF)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

        def _send(
            self, status: int, headers: dict[str, str], data: bytes, *, cut_off: bool = False
        ) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            cut_off = cut_off and len(data) > 1
            self.wfile.write(data[: len(data) // 2] if cut_off else data)
            if cut_off:
                self._break_off()

        def _break_off(self) -> None:
            self.close_connection = True
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
