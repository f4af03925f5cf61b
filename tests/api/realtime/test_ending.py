"""How sessions end: by whom they may, and that nothing of them is left."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from forescribe.api.app import create_app
from forescribe.api.http import protocols
from forescribe.api.http.protocols import SocketProtocol
from forescribe.api.realtime import connection
from forescribe.api.settings import Settings
from forescribe.api.speech.serving import Serving
from tests.api.conftest import Halves, served, until
from tests.api.realtime.sockets import TRANSCRIPT, audio, connected, noise, pcm
from tests.api.test_metrics import series

PATIENCE = 60.0


class Small(SocketProtocol):
    """With a buffer of the system that is soon full."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, 4096
        )


@pytest.fixture
def live(transcriber, decoders) -> Iterator[Callable[..., tuple[Serving, Any, str]]]:
    """`live(**options of uvicorn)` starts a service on a socket; its serving, application and address."""
    with ExitStack() as running:

        def start(drain_s: float = 20.0, **options: Any) -> tuple[Serving, Any, str]:
            settings = Settings(model="random", drain_s=drain_s)
            serving = Serving(settings, lambda: transcriber, Halves, decoders)
            app = create_app(settings, serving)
            options = {"ws": SocketProtocol, "ws_max_size": connection.MAX_MESSAGE, **options}
            url = running.enter_context(served(app, **options))
            until(lambda: serving.life.state == "ready")
            start.stop = running.close  # type: ignore[attr-defined]
            return serving, app, url.replace("http", "ws") + "/v1/realtime?intent=transcription"

        yield start


@contextmanager
def talking(address: str, seconds: float = 2.5, **options: Any) -> Iterator[ClientConnection]:
    """A session that has sent audio."""
    with connect(address, compression=None, **options) as client:
        assert json.loads(client.recv())["type"] == "session.created"
        say(client, "session.update", session={"audio": audio()})
        assert json.loads(client.recv())["type"] == "session.updated"
        say(client, "input_audio_buffer.append", audio=pcm(noise(seconds)))
        yield client


def say(client: ClientConnection, type: str, **fields: object) -> None:
    client.send(json.dumps({"type": type, **fields}))


def rest(client: ClientConnection) -> tuple[list[str], int | None]:
    """The types of all events that follow, and the code of the close."""
    types = []
    try:
        while True:
            types.append(json.loads(client.recv(PATIENCE))["type"].removeprefix(f"{TRANSCRIPT}."))
    except ConnectionClosed as closed:
        return types, None if closed.rcvd is None else closed.rcvd.code


def nothing_left(serving: Serving, app: Any) -> None:
    until(lambda: app.state.streams.open == 0)
    until(lambda: serving.session.idle)
    engine = serving.session.context.engine
    until(lambda: not engine.rows.active.any() and engine.free == engine.batch)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_leaves_in_mid_word_frees_its_rows(live, held, how) -> None:
    serving, app, address = live()
    engine = serving.session.context.engine
    with talking(address, close_timeout=0) as client:
        until(lambda: engine.free < engine.batch)
        if how == "reset":
            linger = struct.pack("ii", 1, 0)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            client.socket.shutdown(socket.SHUT_RD)  # wakes the client's own thread
            client.socket.close()
    nothing_left(serving, app)
    held.set()


def test_the_end_of_the_process_leaves_open_items_their_text(live, held) -> None:
    serving, app, address = live()
    with talking(address) as client:
        until(lambda: not serving.session.idle)
        serving.life.drain()
        time.sleep(0.2)
        held.set()
        types, code = rest(client)
        assert types[-1] == "completed" and code == 1012
        with pytest.raises(Exception, match="503"):
            connect(address)
    nothing_left(serving, app)


def test_a_server_that_is_told_to_exit_ends_sessions_as_well(live) -> None:
    _, _, address = live()
    with talking(address) as client, ThreadPoolExecutor(1) as pool:
        said = pool.submit(rest, client)
        live.stop()
        types, code = said.result(PATIENCE)
    assert types[-1] == "completed" and code == 1012


def test_items_that_take_too_long_at_the_end_fail(live, held) -> None:
    serving, _, address = live(drain_s=0.3)
    with talking(address) as client:
        until(lambda: not serving.session.idle)
        serving.life.drain()
        types, code = rest(client)
        assert types[-1] == "failed" and code == 1012
    held.set()


def test_a_fault_of_ours_ends_the_session_and_says_no_more(live, monkeypatch, held) -> None:
    serving, app, address = live()
    with talking(address) as client:
        until(lambda: not serving.session.idle)
        held.set()
        monkeypatch.setattr(connection, "client_event", lambda text: 1 / 0)
        say(client, "input_audio_buffer.commit")
        types, code = rest(client)
    assert "error" in types and types[-1] == "completed" and code == 1011
    nothing_left(serving, app)


@contextmanager
def unread(address: str) -> Iterator[tuple[ClientConnection, Callable[[], None]]]:
    """A client that reads none of its many answers, and what makes it read on."""
    own = socket.create_connection(("127.0.0.1", int(address.split(":")[2].split("/")[0])))
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with (
        talking(address, sock=own, close_timeout=0, ping_interval=None) as client,
        ExitStack() as reads,
    ):
        client.recv_flow_control.acquire()
        reads.callback(client.recv_flow_control.release)
        with suppress(ConnectionClosed, OSError):
            for _ in range(5000):
                say(client, "no such event")
        yield client, reads.close


def test_a_slow_reader_is_cut_off_and_told_so_when_it_reads_on(live, monkeypatch) -> None:
    monkeypatch.setattr(connection, "MAX_UNSENT", 1 << 14)
    monkeypatch.setattr(connection, "CLOSE_S", 0.2)
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(connection, "report", lambda event, **facts: said.append(facts))
    serving, app, address = live(ws=Small)
    with unread(address) as (client, read_on):
        nothing_left(serving, app)
        read_on()
        types, code = rest(client)
    assert said[-1]["close"] == code == 1013 and set(types) == {"error"}


def test_a_client_that_never_reads_is_cut_off_in_the_end(live, monkeypatch) -> None:
    monkeypatch.setattr(connection, "MAX_UNSENT", 1 << 14)
    monkeypatch.setattr(protocols, "LINGER_S", 0.2)
    lost = threading.Event()

    class Watched(Small):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.close_timeout = 10 * PATIENCE  # of uvicorn

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    _, _, address = live(ws=Watched)
    with unread(address):
        assert lost.wait(PATIENCE)


def test_a_client_that_is_faster_than_the_model_waits(live, held, monkeypatch) -> None:
    monkeypatch.setattr(connection, "MAX_BEHIND_S", 2.0)
    serving, _, address = live()
    sent = threading.Event()

    def send(client: ClientConnection) -> None:
        for seed in range(8):
            say(client, "input_audio_buffer.append", audio=pcm(noise(5, seed)))
        say(client, "input_audio_buffer.commit")
        sent.set()

    # The client's own pings are behind what it sends, and it would give up after 40 s.
    with talking(address, ping_interval=None) as client, ThreadPoolExecutor(1) as pool:
        pool.submit(send, client)
        until(lambda: not serving.session.idle)
        time.sleep(1.0)
        registry = serving.metrics.registry
        received = registry.get_sample_value("forescribe_live_audio_seconds_total")
        assert received <= 10  # counted in steps of ten seconds
        held.set()
        while (event := json.loads(client.recv(PATIENCE)))["type"] != f"{TRANSCRIPT}.completed":
            pass
        assert sent.is_set() and event["usage"]["seconds"] == 42.5


def test_what_is_told_is_counted(service) -> None:
    client = service()
    with connected(client) as session:
        session.append(noise(2.5))
        session.commit()
        session.until("completed")
        assert series(client)["forescribe_live_streams"] == 1
    until(lambda: client.app.state.streams.open == 0)
    now = series(client)
    assert now["forescribe_live_items_total{result=completed}"] == 1
    assert now["forescribe_live_audio_seconds_total"] == 2.5
    assert now["forescribe_live_lag_seconds_count"] >= 0


def test_a_model_stays_while_a_session_is_open_and_comes_back_for_one(service, transcriber) -> None:
    client = service(idle_unload_s=0.05)
    serving = client.app.state.serving
    until(lambda: serving.session is None)
    with connected(client) as session:
        time.sleep(0.3)
        assert serving.session is not None
        session.append(noise(1))
        session.commit()
        assert session.until("completed")["transcript"]
    until(lambda: serving.session is None)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"\x81\x05hello", id="not masked"),
        pytest.param(b"\x83\x80\0\0\0\0", id="a reserved kind"),
        pytest.param(b"\xf1\x80\0\0\0\0", id="reserved bits"),
        pytest.param(b"\x81\x82\0\0\0\0\xff\xff", id="not UTF-8"),
        pytest.param(b"\x80\x80\0\0\0\0", id="the middle of nothing"),
        pytest.param(b"\x88\x81\0\0\0\0\0", id="a close that is too short"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP"),
    ],
)
def test_what_is_no_frame_ends_its_session_only(live, frame) -> None:
    serving, app, address = live()
    with talking(address) as other:
        with talking(address, close_timeout=0) as client:
            client.socket.sendall(frame)
            assert rest(client)[1] in (1002, 1007, None)
        until(lambda: app.state.streams.open == 1)
        say(other, "input_audio_buffer.commit")
        while json.loads(other.recv(PATIENCE))["type"] != f"{TRANSCRIPT}.completed":
            pass
    nothing_left(serving, app)
