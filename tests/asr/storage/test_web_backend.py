"""Web addresses: read in pieces, again where they broke off, and nothing secret in any message."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from forescribe.asr.storage.errors import (
    DeniedError,
    LocatedError,
    MissingError,
    UnavailableError,
    UnsupportedError,
)
from forescribe.asr.storage.locations import Location
from forescribe.asr.storage.stores import Stores

SIGNED = "a.mp3?Signature=9c41"
BODY = bytes(range(256)) * 8000


class Web:
    """A server of one recording at `/a.mp3`; `answers` are the first statuses, 0 breaks off in the middle."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.asked: list[str] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode()
        self.asked.append(path)
        assert request.headers["Authorization"].startswith("Basic ")
        status = 404 if path.startswith("/nope") else 200
        if self.answers:
            status = self.answers.pop(0)
        if path.startswith("/endless"):
            return httpx.Response(200 if path.endswith(".jsonl") else 403, content=self._endless())
        if status == 0:
            size = {"Content-Length": str(len(BODY))}
            return httpx.Response(200, headers=size, content=self._cut_off())
        if status == 200:
            return httpx.Response(200, headers={"ETag": '"tag"'}, content=BODY)
        return httpx.Response(status, headers={"Location": f"/{SIGNED}"})

    def _cut_off(self) -> Iterator[bytes]:
        yield BODY[: len(BODY) // 2]
        raise httpx.RemoteProtocolError("peer closed connection")

    def _endless(self) -> Iterator[bytes]:
        yield b"<Code>ExpiredToken</Code>"
        while True:
            yield bytes(1 << 20)


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Web:
    web, client = Web(), httpx.Client
    transport = httpx.MockTransport(web.answer)
    monkeypatch.setattr(httpx, "Client", lambda **own: client(transport=transport, **own))
    return web


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forescribe.asr.storage.store.PAUSE_S", 0.0)


def opened(path: str = SIGNED):
    return Stores().of(Location.parse(f"http://me:secret@example.com/{path}"))


def fetch(folder: Path, path: str = SIGNED):
    store, key = opened(path)
    return store.fetch(key, folder / "copy"), store


def test_a_signed_address_is_read_with_its_signature(web, tmp_path) -> None:
    entry, store = fetch(tmp_path)
    assert (tmp_path / "copy").read_bytes() == BODY
    assert entry.size == len(BODY) and entry.etag == '"tag"' and store.requests == {"get": 1}
    assert web.asked == [f"/{SIGNED}"]
    assert store.head("a.mp3").version == f"{len(BODY)}:tag"


@pytest.mark.parametrize("answers", [[0], [503, 429, 302], [0, 503, 0]])
def test_a_busy_server_is_asked_again_and_a_body_that_breaks_off_is_read_again(
    web, tmp_path, answers: list[int]
) -> None:
    web.answers = list(answers)
    fetch(tmp_path)
    assert (tmp_path / "copy").read_bytes() == BODY and len(web.asked) == len(answers) + 1


@pytest.mark.parametrize(
    ("answers", "path", "kind", "says"),
    [
        ([403], SIGNED, DeniedError, "the link has expired or gives no access (403)"),
        ([], "nope.mp3?Signature=9c41", MissingError, "no such object"),
        ([503] * 9, SIGNED, UnavailableError, "(503); try again later"),
        ([418], SIGNED, UnsupportedError, "refuses the request (418)"),
        ([], "endless.mp3", DeniedError, "ExpiredToken"),  # by the beginning of the page
    ],
)
def test_errors_say_what_to_do_and_nothing_secret(
    web, tmp_path, answers, path: str, kind: type[LocatedError], says: str
) -> None:
    web.answers = answers
    with pytest.raises(kind) as caught:
        fetch(tmp_path, path)
    text = str(caught.value)
    assert says in text and "9c41" not in text and "secret" not in text
    assert not (tmp_path / "copy").exists()


def test_of_an_endless_list_no_more_is_read_than_a_list_may_have(web, monkeypatch) -> None:
    monkeypatch.setattr("forescribe.asr.storage.store.SMALL", 1 << 20)
    store, key = opened("endless.jsonl")
    with pytest.raises(UnsupportedError, match="too many to read at once"):
        store.read(key)


@pytest.mark.parametrize(
    ("number", "kind", "asked"),
    [(socket.EAI_NONAME, LocatedError, 1), (socket.EAI_AGAIN, UnavailableError, 6)],
)
def test_a_name_that_no_server_has_is_asked_for_once(
    tmp_path, monkeypatch, number: int, kind: type[LocatedError], asked: int
) -> None:
    def look_up(*_, **__):
        raise socket.gaierror(number, os.strerror(0))

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    store, key = opened()
    with pytest.raises(LocatedError, match="no server has|does not answer") as caught:
        store.fetch(key, tmp_path / "copy")
    assert type(caught.value) is kind and "9c41" not in str(caught.value)
    assert store.requests == {"get": asked}


@pytest.mark.parametrize("address", ["https://example.com/a.mp3", "hf://datasets/org/name/a.mp3"])
def test_web_servers_and_repositories_are_read_only(address: str) -> None:
    store, _ = Stores().of(Location.parse(address))
    for call in (
        lambda: store.put("b", b""),
        lambda: store.create("b", b""),
        lambda: store.delete("b"),
    ):
        with pytest.raises(UnsupportedError, match="can only be read"):
            call()
