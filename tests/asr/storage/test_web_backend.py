"""Web addresses: read in pieces, continued where they broke off, and nothing secret in any message."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from forescribe.asr.storage.errors import (
    DeniedError,
    LocatedError,
    MissingError,
    UnavailableError,
    UnreachableError,
    UnsupportedError,
)
from forescribe.asr.storage.locations import Location
from forescribe.asr.storage.stores import Stores


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forescribe.asr.storage.store.PAUSE_S", 0.0)


BODY = bytes(range(256)) * 8000


@dataclass
class Web:
    """A server of one recording at `/a.mp3`; `answers` are the first statuses, 0 breaks off in the middle."""

    port: int = 0
    answers: list[int] = field(default_factory=list)
    ranges: bool = True
    asked: list[str] = field(default_factory=list)

    def location(self, path: str = "a.mp3?Signature=9c41") -> Location:
        return Location.parse(f"http://me:secret@127.0.0.1:{self.port}/{path}")


@pytest.fixture
def web() -> Iterator[Web]:
    web = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            web.asked.append(self.path)
            status = web.answers.pop(0) if web.answers else 200
            if self.path.startswith("/endless"):
                self.send_response(200 if self.path.endswith(".jsonl") else 403)
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(b"<Code>ExpiredToken</Code>")
                    while True:  # until the reader has gone
                        self.wfile.write(bytes(1 << 20))
                return
            if self.path.startswith("/nope"):
                status = 404
            if status not in (0, 200):
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/a.mp3?Signature=9c41")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start = 0
            asked = self.headers.get("Range", "")
            if web.ranges and asked:
                start = int(asked.removeprefix("bytes=").rstrip("-"))
            body = BODY[start:]
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(BODY) - 1}/{len(BODY)}")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"tag"')
            self.end_headers()
            try:
                self.wfile.write(body[: len(body) // 2] if status == 0 else body)
            except OSError:
                pass  # the reader wanted the header only

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    web.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    yield web
    server.shutdown()
    server.server_close()


def fetch(web: Web, folder: Path, **options):
    store, key = Stores().of(web.location(**options))
    return store.fetch(key, folder / "copy"), store


def test_a_signed_address_is_read_with_its_signature(web, tmp_path) -> None:
    entry, store = fetch(web, tmp_path)
    assert (tmp_path / "copy").read_bytes() == BODY
    assert entry.size == len(BODY) and entry.etag == '"tag"' and store.requests == {"get": 1}
    assert web.asked == ["/a.mp3?Signature=9c41"]
    assert store.head("a.mp3").version == f"{len(BODY)}:tag"


@pytest.mark.parametrize("ranges", [True, False])
def test_a_body_that_breaks_off_is_completed(web, tmp_path, ranges: bool) -> None:
    web.ranges, web.answers = ranges, [0]
    fetch(web, tmp_path)
    assert (tmp_path / "copy").read_bytes() == BODY and len(web.asked) == 2


def test_a_busy_server_is_asked_again_and_a_redirect_is_followed(web, tmp_path) -> None:
    web.answers = [503, 429, 302]
    fetch(web, tmp_path)
    assert (tmp_path / "copy").read_bytes() == BODY


@pytest.mark.parametrize(
    ("answers", "path", "kind", "says"),
    [
        (
            [403],
            "a.mp3?Signature=9c41",
            DeniedError,
            "the link has expired or gives no access (403)",
        ),
        ([], "nope.mp3?Signature=9c41", MissingError, "no such object"),
        (
            [503] * 9,
            "a.mp3?Signature=9c41",
            UnavailableError,
            "(503); try again later",
        ),
        ([418], "a.mp3?Signature=9c41", UnsupportedError, "refuses the request (418)"),
    ],
)
def test_errors_say_what_to_do_and_nothing_secret(
    web, tmp_path, answers, path: str, kind: type[LocatedError], says: str
) -> None:
    web.answers = answers
    with pytest.raises(kind) as caught:
        fetch(web, tmp_path, path=path)
    text = str(caught.value)
    assert says in text and "9c41" not in text and "secret" not in text
    assert not (tmp_path / "copy").exists()


def test_a_server_that_is_not_there_is_unavailable(tmp_path) -> None:
    with pytest.raises(UnavailableError, match="does not answer"):
        fetch(Web(port=9), tmp_path)


def unnamed(number: int):
    """A look-up that fails with this number."""

    def look_up(*_, **__):
        raise socket.gaierror(number, os.strerror(0))

    return look_up


def test_a_name_that_no_server_has_is_asked_for_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", unnamed(socket.EAI_NONAME))
    store, key = Stores().of(Location.parse("http://no-such.example/a.mp3?Signature=9c41"))
    with pytest.raises(
        UnreachableError, match=r"no server has the name no-such\.example"
    ) as caught:
        store.fetch(key, tmp_path / "copy")
    assert store.requests == {"get": 1} and "9c41" not in str(caught.value)


def test_a_name_that_cannot_be_looked_up_now_is_asked_for_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", unnamed(socket.EAI_AGAIN))
    store, key = Stores().of(Location.parse("http://example.com/a.mp3"))
    with pytest.raises(UnavailableError):
        store.fetch(key, tmp_path / "copy")
    assert store.requests == {"get": store.attempts}


def test_web_servers_are_read_only(web) -> None:
    store, _ = Stores().of(web.location())
    for call in (
        lambda: store.put("b", b""),
        lambda: store.create("b", b""),
        lambda: store.delete("b"),
        lambda: store.list(),
    ):
        with pytest.raises(UnsupportedError):
            call()


def test_addresses_of_one_server_share_its_connections_and_counts(web, tmp_path) -> None:
    stores = Stores()
    for number in range(3):
        store, key = stores.of(web.location(f"a.mp3?Signature={number}"))
        store.fetch(key, tmp_path / "copy")
    assert web.asked == [f"/a.mp3?Signature={number}" for number in range(3)]
    assert stores.of(web.location())[0].requests == {"get": 3}


def test_of_an_endless_error_page_the_beginning_is_read(web: Web) -> None:
    store, key = Stores().of(web.location("endless.mp3"))
    with pytest.raises(DeniedError, match="ExpiredToken"):
        store.head(key)


def test_of_an_endless_list_no_more_is_read_than_a_list_may_have(web: Web, monkeypatch) -> None:
    monkeypatch.setattr("forescribe.asr.storage.store.SMALL", 1 << 20)
    store, key = Stores().of(web.location("endless.jsonl"))
    with pytest.raises(UnsupportedError, match="too many to read at once"):
        store.read(key)
