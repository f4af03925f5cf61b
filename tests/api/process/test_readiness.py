"""Readiness and metrics tell the truth: of disks, of the database, of an end that was announced."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from forescribe.api.errors import ApiError
from forescribe.api.routers.operations import FRESH_S, Readiness, Storage
from forescribe.api.settings import Settings
from forescribe.api.telemetry import Metrics, TimedValue
from tests.api.jobs.application import application, ready


class Away:
    """A database that fails or hangs."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def connect(self):
        self.go.wait(30)
        raise sa.exc.OperationalError(
            "select", {}, Exception("connection refused at /run/secret.sock")
        )

    begin = connect


@pytest.fixture(scope="module")
def client(transcriber, decoders, tmp_path_factory) -> Iterator[TestClient]:
    with application(tmp_path_factory.mktemp("ready"), transcriber, decoders) as client:
        yield ready(client)


@pytest.fixture
def fresh(client) -> Readiness:
    """Nothing is known from the test before."""
    state = client.app.state
    state.readiness = Readiness(state.settings, state.serving, state.text_serving, state.jobs)
    return state.readiness


def reason(client: TestClient) -> str:
    answer = client.get("/ready")
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["code"] == "not_ready"
    return answer.json()["error"]["message"]


def test_ready_is_yes_where_all_is_well(client, fresh) -> None:
    assert client.get("/ready").text == "OK"
    assert client.head("/ready").status_code == client.head("/health").status_code == 200


def test_a_database_that_cannot_be_written_is_not_ready(client, fresh, monkeypatch) -> None:
    """Reading would still work: SQLite on a disk that has become read-only."""
    engine = client.app.state.jobs.store.database.engine

    @sa.event.listens_for(engine, "checkout")
    def refuse(connection, record, proxy) -> None:
        connection.execute("PRAGMA query_only=ON")

    try:
        assert "cannot be written" in reason(client)
    finally:
        sa.event.remove(engine, "checkout", refuse)
        engine.dispose()  # connections that other threads had meanwhile, too


def test_a_database_that_fails_or_hangs_is_not_ready_and_metrics_answer(
    client, fresh, monkeypatch
) -> None:
    away, looks = Away(), list[None]()
    database = client.app.state.jobs.store.database
    look = database.accepts_writes
    monkeypatch.setattr(database, "engine", away)
    monkeypatch.setattr(database, "accepts_writes", lambda: looks.append(None) or look())
    monkeypatch.setattr(TimedValue, "wait_s", property(lambda value: 0.05), raising=False)
    fresh.wait_s = 0.05
    assert "does not answer" in reason(client)
    assert "does not answer" in reason(client) and len(looks) < 2  # one look at a time
    assert client.get("/health").status_code == 200
    began = time.monotonic()
    told = client.get("/metrics")
    assert told.status_code == 200 and time.monotonic() - began < 15
    assert "forescribe_ready 1.0" in told.text and "forescribe_jobs_open NaN" in told.text
    away.go.set()
    fresh.wait_s = 10.0
    message = reason(client)
    assert "cannot be written" in message and "secret" not in message
    assert "forescribe_jobs_open NaN" in client.get("/metrics").text


def limited(client, fresh, monkeypatch, least: int) -> None:
    settings = client.app.state.settings.model_copy(update={"min_free_bytes": least})
    monkeypatch.setattr(fresh, "settings", settings)


def free(monkeypatch, client, *, scratch: int, data: int) -> None:
    """The disks have so many bytes left."""
    usage = shutil._ntuple_diskusage(1 << 40, 1, scratch)
    monkeypatch.setattr("forescribe.api.routers.operations.shutil.disk_usage", lambda path: usage)
    files = type(client.app.state.jobs.store.files)
    monkeypatch.setattr(files, "free", property(lambda self: data))


def test_a_disk_without_room_for_uploads_is_not_ready(client, fresh, monkeypatch) -> None:
    limited(client, fresh, monkeypatch, 8000)
    free(monkeypatch, client, scratch=999, data=1 << 40)
    message = reason(client)
    assert "uploads" in message and "min_free_bytes" in message


def test_a_server_that_cannot_store_is_ready_to_transcribe_and_says_so(
    client, fresh, monkeypatch
) -> None:
    """Also if uploads and jobs share the disk: what is reserved there is for transcriptions."""
    limited(client, fresh, monkeypatch, 8000)
    free(monkeypatch, client, scratch=7999, data=7999)
    answer = client.get("/ready")
    assert answer.status_code == 200 and client.head("/ready").status_code == 200
    assert answer.text.startswith("OK") and "cannot store" in answer.text
    assert "min_free_bytes" in answer.text
    assert str(client.app.state.jobs.store.files.root) not in answer.text


@pytest.mark.parametrize("state", ["loading", "draining", "broken", "stopped"])
def test_whatever_else_the_server_is_it_is_not_ready(client, fresh, monkeypatch, state) -> None:
    monkeypatch.setattr(client.app.state.serving.life, "state", state)
    assert state in reason(client)
    assert client.get("/health").status_code == 200


def test_probes_do_not_ask_the_database_more_than_once_a_second() -> None:
    now, looks = [0.0], []
    state = SimpleNamespace(life=SimpleNamespace(state="ready"))
    made = Readiness(Settings(min_free_bytes=0), state, state, None, clock=lambda: now[0])
    made._check_storage = lambda: looks.append(1) or Storage()

    async def probe(times: int) -> None:
        for _ in range(times):
            await made.check()

    asyncio.run(probe(20))
    assert len(looks) == 1
    now[0] += FRESH_S
    asyncio.run(probe(20))
    assert len(looks) == 2
    made._check_storage = lambda: Storage(fault="wrong")
    now[0] += FRESH_S
    with pytest.raises(ApiError, match="wrong"):
        asyncio.run(probe(1))


def test_a_value_that_fails_or_hangs_leaves_a_gap_and_comes_back() -> None:
    go, metrics = threading.Event(), Metrics()
    metrics.watch("broken", "Fails.", lambda: 1 / 0)
    metrics.watch("fine", "Does not.", lambda: 3)
    slow = TimedValue(lambda: 7.0 if go.wait(30) else 0.0, wait_s=0.01)
    text = metrics.text().decode()
    assert "forescribe_broken NaN" in text and "forescribe_fine 3.0" in text
    assert slow() != slow()  # NaN
    go.set()
    slow.wait_s = 10
    assert slow() == 7.0


def test_probes_are_counted_but_leave_no_line_in_the_log(client, fresh, caplog) -> None:
    with caplog.at_level("INFO", "forescribe.api"):
        for path in ("/health", "/ready", "/metrics", "/v1/models"):
            assert client.get(path).status_code == 200
    lines = [line for line in caplog.messages if '"event": "request"' in line]
    assert len(lines) == 1 and "/v1/models" in lines[0]
    assert 'forescribe_requests_total{route="/health",status="200"}' in client.get("/metrics").text
