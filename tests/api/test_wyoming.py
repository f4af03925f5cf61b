"""Wyoming as Home Assistant speaks it, over a socket; and what is not the protocol, which harms nobody."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from forescribe.api import wyoming
from forescribe.api.settings import Settings, address_of
from forescribe.asr.live.formats import AudioInput
from tests.api.conftest import RATE, sound, until
from tests.api.test_metrics import series

FORM = {"rate": RATE, "width": 2, "channels": 1}
NOISE = np.frombuffer(sound(3)[44:], "<i2").tobytes()


class Client:
    """Messages over a connection, the audio in pieces of 2048 bytes as of a satellite."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.file = connection, connection.makefile("rb")

    def send(self, type: str, payload: bytes = b"", **data: Any) -> None:
        body = json.dumps(data).encode() if data else b""
        head = {"type": type, "version": "1.5.4", "data_length": len(body)}
        if payload:
            head["payload_length"] = len(payload)
        self.connection.sendall(json.dumps(head).encode() + b"\n" + body + payload)

    def next(self) -> tuple[str, dict[str, Any]] | None:
        line = self.file.readline()
        if not line:
            return None
        head = json.loads(line)
        body = self.file.read(head.get("data_length") or 0)
        return head["type"], json.loads(body) if body else {}

    def speak(self, audio: bytes, *, stop: bool = True, **form: int) -> None:
        form = {"rate": RATE, "width": 2, "channels": 1, **form}
        self.send("audio-start", **form)
        for at in range(0, len(audio), 2048):
            self.send("audio-chunk", audio[at : at + 2048], **form)
        if stop:
            self.send("audio-stop")

    def answer(self) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
        """The transcript, and what came before it."""
        before = []
        while (message := self.next()) is not None:
            if message[0] == "transcript":
                return message[1], before
            before.append(message)
        raise AssertionError(before)


@pytest.fixture
def live(service) -> tuple[tuple[str, int], TestClient]:
    """The address, and a client of HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    client = service(wyoming=f"127.0.0.1:{port}", language="de", drain_s=5.0)
    return ("127.0.0.1", port), client


@pytest.fixture
def address(live) -> tuple[str, int]:
    return live[0]


@contextmanager
def connected(address: tuple[str, int]) -> Iterator[Client]:
    with socket.create_connection(address, timeout=60) as connection:
        client = Client(connection)
        with client.file:
            yield client


def test_a_client_learns_what_there_is(address) -> None:
    with connected(address) as client:
        client.send("ping", text="1")
        assert client.next() == ("pong", {"text": "1"})
        client.send("describe")
        kind, told = client.next()
    (program,) = told["asr"]
    assert kind == "info" and program["supports_transcript_streaming"] is True
    (model,) = program["models"]
    assert model["name"] == "random" and "de" in model["languages"]
    # What the client's library requires of each part.
    for part in (program, model):
        assert {"name", "attribution", "installed", "description", "version"} <= part.keys()
        assert {"name", "url"} <= part["attribution"].keys()


def test_two_requests_in_one_connection_have_the_text_of_uploads(live) -> None:
    address, http = live
    with connected(address) as client:
        texts = []
        for _ in range(2):
            client.send("transcribe", name="random", language="de-DE")
            client.speak(NOISE)
            told, before = client.answer()
            texts.append(told)
            kinds = [kind for kind, _ in before]
            assert kinds == (["transcript-start"] if kinds else []) + ["transcript-chunk"] * (
                len(kinds) - 1 if kinds else 0
            )
            if before:
                assert client.next() == ("transcript-stop", {})
    assert texts[0] == texts[1]
    until(lambda: http.app.state.streams.open == 0)
    now = series(http)
    assert now["forescribe_live_items_total{result=completed}"] == 2
    assert now["forescribe_live_audio_seconds_total"] == pytest.approx(2 * len(NOISE) / 2 / RATE)
    assert now["forescribe_live_lag_seconds_count"] >= 0 == now["forescribe_live_streams"]


def test_nothing_was_said(address) -> None:
    with connected(address) as client:
        client.send("audio-stop")
        client.speak(b"")
        assert client.answer() == ({"text": ""}, [])
        client.speak(NOISE[:1001])  # less than 0.1 s, and half a sample
        assert client.answer() == ({"text": ""}, [])


@pytest.mark.parametrize(
    ("asked", "form", "word"),
    [
        ({"language": "xx"}, {}, "xx"),
        ({}, {"rate": 0}, "16-bit mono"),
        ({}, {"width": 4}, "16-bit mono"),
        ({}, {"channels": 2}, "16-bit mono"),
    ],
)
def test_what_cannot_be_served_is_told(address, asked, form, word) -> None:
    with connected(address) as client:
        client.send("transcribe", **asked)
        client.send("audio-start", **{**FORM, **form})
        kind, told = client.next()
        assert kind == "error" and told["code"] == "invalid_value" and word in told["text"]
        assert client.next() is None


def line(**head: Any) -> bytes:
    return json.dumps(head).encode() + b"\n"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"x" * 100_000,
        b"[" * 60_000 + b"\n",
        b"[]\n",
        b'{"type": 1}\n',
        line(type="audio-chunk", payload_length="9"),
        line(type="describe", data_length=3) + b"abc",
        line(type="audio-start", data={}),
        line(type="transcribe", data={"language": 7}) + line(type="audio-start", data=FORM),
        line(type="transcribe", data={"transcript_names": "x"})
        + line(type="audio-start", data=FORM),
    ],
    ids=lambda data: repr(data[:40]),
)
def test_what_is_not_the_protocol_ends_its_connection_and_no_other(address, caplog, data) -> None:
    caplog.set_level(logging.INFO, "forescribe.api")
    with connected(address) as other:
        other.speak(NOISE, stop=False)
        with connected(address) as client:
            client.connection.sendall(data)
            client.connection.shutdown(socket.SHUT_WR)
            assert client.next() is None
        other.send("audio-stop")
        assert other.answer()[0].keys() == {"text", "language"}
    assert not any('"fault"' in record.message for record in caplog.records)


@pytest.mark.parametrize("name", ["data_length", "payload_length"])
def test_a_message_that_is_too_large_is_not_waited_for(address, name) -> None:
    with connected(address) as client:
        client.connection.sendall(line(type="audio-chunk", **{name: 65 << 20}))
        assert client.next() is None


def test_minutes_in_one_chunk_are_fed_by_the_second_and_not_on_the_event_loop(
    live, monkeypatch
) -> None:
    address, _ = live
    pushed, push = [], AudioInput.push

    def noted(self: AudioInput, data: bytes) -> Any:
        pushed.append((len(data), threading.current_thread().name))
        return push(self, data)

    monkeypatch.setattr(AudioInput, "push", noted)
    with connected(address) as client:
        client.send("audio-start", **FORM)
        client.send("audio-chunk", bytes(2 * RATE * 100) + NOISE, **FORM)
        client.send("audio-stop")
        text = client.answer()[0]["text"]
    assert sum(size for size, _ in pushed) == 2 * RATE * 100 + len(NOISE)
    assert max(size for size, _ in pushed) == 2 * RATE
    assert all(name.startswith("asyncio_") for _, name in pushed)
    assert text


@pytest.mark.parametrize("ending", ["reads nothing", "stops"])
def test_a_client_that_reads_nothing_or_stops_is_left_and_others_are_served(
    live, monkeypatch, ending
) -> None:
    address, http = live
    monkeypatch.setattr(wyoming, "IDLE_S", 2.0)
    with connected(address) as idle:
        idle.speak(NOISE, stop=False)
        until(lambda: http.app.state.streams.open == 1)
        if ending == "reads nothing":
            idle.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            describe = line(type="describe") * 100
            with pytest.raises(ConnectionError):  # the service has closed it, long before a timeout
                while True:
                    idle.connection.sendall(describe)
        else:
            idle.connection.sendall(line(type="audio-chunk", payload_length=100) + b"half")
        with connected(address) as other:
            other.speak(NOISE)
            assert other.answer()[0].keys() == {"text", "language"}
        until(lambda: http.app.state.streams.open == 0)


def test_clients_that_leave_leave_nothing(address, transcriber, service) -> None:
    for _ in range(3):
        with connected(address) as client:
            client.speak(NOISE, stop=False)
    with connected(address) as client:
        client.speak(NOISE)
        client.answer()
    until(lambda: transcriber.context.idle)


def test_the_end_of_the_service_waits_for_no_client_that_has_its_answer(live, monkeypatch) -> None:
    address, http = live
    in_thread = asyncio.to_thread

    async def later(*work: Any) -> Any:
        await asyncio.sleep(0.2)  # the end comes before what is held is released
        return await in_thread(*work)

    with connected(address) as client:
        client.speak(NOISE, stop=False)
        until(lambda: http.app.state.streams.open == 1)
        monkeypatch.setattr(asyncio, "to_thread", later)
        client.send("audio-stop")
        client.answer()
    http.__exit__()
    assert http.app.state.serving.admission.requests == 0


def test_a_request_more_than_there_may_be_live_is_refused(live, monkeypatch) -> None:
    address, http = live
    monkeypatch.setattr(http.app.state.streams, "settings", Settings(max_streams=1))
    with connected(address) as first, connected(address) as second:
        first.speak(NOISE, stop=False)
        until(lambda: http.app.state.streams.open == 1)
        second.send("audio-start", **FORM)
        kind, told = second.next()
        assert kind == "error" and told["code"] == "overloaded"
        first.send("audio-stop")
        assert first.answer()[0].keys() == {"text", "language"}


def test_an_address_that_is_taken_ends_the_service(service) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        client = service(wyoming=f"127.0.0.1:{taken.getsockname()[1]}")
        (failure,) = client.app.state.failures
    assert failure.lasting and "--wyoming" in failure.line


def test_the_address() -> None:
    assert address_of("10300") == ("127.0.0.1", 10300)
    assert address_of("tcp://0.0.0.0:10300") == ("0.0.0.0", 10300)
    assert address_of("[::1]:10300") == ("::1", 10300)
    for wrong in ("", "host", "host:", "99999", "-1"):
        with pytest.raises(ValueError, match="wyoming"):
            Settings(wyoming=wrong)
    with pytest.raises(ValueError, match="front_end"):
        Settings(wyoming="10300", front_end=True, database_url="postgresql://h/d")
