"""Connections as uvicorn has them with our protocol: bytes by hand."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from forescribe.api.http.protocols import HttpProtocol
from tests.api.conftest import until
from tests.api.contract import conforms

HEAD_S = 0.3
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Hasty(HttpProtocol):
    head_s = HEAD_S


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def whole(request: Request) -> PlainTextResponse:
    """Answers once the body is there, or its client has left."""
    try:
        return PlainTextResponse(await request.body())
    except ClientDisconnect:
        return PlainTextResponse("gone", 499)


async def slow(request: Request) -> StreamingResponse:
    """Takes longer than a head may."""
    import asyncio

    async def lines():
        for _ in range(5):
            yield b"."
            await asyncio.sleep(HEAD_S / 3)

    return StreamingResponse(lines())


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    app = Starlette(
        routes=[Route("/", hello), Route("/slow", slow), Route("/whole", whole, methods=["POST"])]
    )
    config = uvicorn.Config(app, port=0, log_config=None, http=Hasty, timeout_keep_alive=60)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()
    server.should_exit = True
    thread.join()


def all_of(connection: socket.socket) -> bytes:
    """Until the server ends the connection."""
    connection.settimeout(20)
    found = b""
    while piece := connection.recv(65536):
        found += piece
    return found


def refused(answer: bytes, status: int, code: str) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d" % status), answer
    assert b"content-type: application/json" in head.lower()
    told = json.loads(body)
    conforms(told, "ErrorResponse")
    assert told["error"]["code"] == code


@pytest.mark.parametrize("start", [b"", b"GET", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_a_head_that_does_not_come_ends_the_connection(address, start) -> None:
    began = time.monotonic()  # the server's clock may begin before a busy client goes on
    with socket.create_connection(address) as connection:
        connection.sendall(start)
        refused(all_of(connection), 408, "request_timeout")
        assert HEAD_S * 0.9 <= time.monotonic() - began < 10


def test_a_head_that_drips_ends_too(address) -> None:
    """Bytes do not wind the clock back."""
    with socket.create_connection(address) as connection:
        for byte in GET[:-1]:
            try:
                connection.sendall(bytes([byte]))
            except OSError:
                break
            time.sleep(HEAD_S / 10)
        else:
            raise AssertionError("a head may take as long as it likes")


@pytest.mark.parametrize(
    "request_",
    [
        b"no http\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
    ],
)  # fmt: skip
def test_what_is_no_http_is_told_so_in_our_form(address, request_) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(request_)
        refused(all_of(connection), 400, "invalid_value")


POST = b"POST /whole HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("path", [b"/", b"/whole", b"/slow", b"/nothing"])
@pytest.mark.parametrize("pause_s", [0.0, 0.1])
def test_a_body_that_is_no_http_ends_its_request_without_a_fault(
    address, caplog, path, pause_s
) -> None:
    """The refusal is the answer: the application, which may have begun its own, must send no second one."""
    with caplog.at_level("WARNING"), socket.create_connection(address) as connection:
        head = POST.replace(b"/whole", path)
        if pause_s:
            connection.sendall(head)
            time.sleep(pause_s)
            connection.sendall(b"no length\r\n")
        else:
            connection.sendall(head + b"no length\r\n")
        answer = all_of(connection)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 404", b"HTTP/1.1 405"))
    assert answer.count(b"HTTP/1.1") == 1
    with socket.create_connection(address) as connection:  # the request before has ended by now
        connection.sendall(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert all_of(connection).endswith(b"hello")
    assert "Traceback" not in caplog.text and "Exception in ASGI" not in caplog.text
