"""Jobs whose audio and results are objects, and services without a model, as clients see them."""

from __future__ import annotations

import re
import threading

import pytest

from forescribe.api.access.keys import digest, new_key
from forescribe.api.app import create_worker_app
from forescribe.asr.errors import OutputError, StorageError
from forescribe.asr.storage.errors import DeniedError, UnavailableError
from forescribe.asr.storage.locations import Location
from tests.api.conftest import memo, until
from tests.api.jobs.application import JOBS, application, ended, events, ready, submit
from tests.api.jobs.test_files import objects_in

HERE = Location.parse("s3://bucket/service")


@pytest.fixture
def objects(tmp_path):
    return objects_in(tmp_path / "bucket", tmp_path / "objects")


@pytest.fixture
def client(tmp_path, transcriber, decoders, objects, short_waits):
    with application(tmp_path / "data", transcriber, decoders, files=objects) as client:
        yield ready(client)


@pytest.fixture
def away(objects, monkeypatch):
    """While it is set, the object storage answers nothing, or refuses the credentials."""
    state = threading.Event()
    state.looks, state.error = 0, UnavailableError  # type: ignore[attr-defined]
    for name in ("put", "read", "fetch", "head", "list", "delete"):
        monkeypatch.setattr(objects.objects, name, _unless(state, getattr(objects.objects, name)))
    yield state
    state.clear()


def _unless(state, act):
    def request(*args, **named):
        if state.is_set():
            state.looks += 1
            raise state.error(HERE, "503 SlowDown")
        return act(*args, **named)

    return request


def test_a_job_lives_and_dies_in_objects(client, objects, tmp_path) -> None:
    audio = memo(3)
    job = submit(client, audio).json()["id"]
    assert ended(client, job)["state"] == "succeeded"
    assert client.get(f"{JOBS}/{job}/result").json()["text"]
    segments = [data["segments"] for kind, _, data in events(client, job) if kind == "segment"]
    assert segments and all(segments)
    roles = client.app.state.jobs.store.jobs.get(job).files
    assert set(roles) == {"audio", "form", "plan", "group-0", "spoken", "result"}
    assert client.get(f"{JOBS}/{job}/audio").content == audio
    part = client.get(f"{JOBS}/{job}/audio", headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, audio[10:20])
    requests = re.findall(
        r'^forescribe_store_requests_total{kind="(\w+)"} (\S+)$', client.get("/metrics").text, re.M
    )
    assert {kind: float(count) for kind, count in requests} == dict(objects.requests)
    assert sum(objects.requests.values()) >= 4
    assert client.delete(f"{JOBS}/{job}").status_code == 204
    assert objects.jobs() == set()
    assert not list((objects.root / "copies").iterdir()), "a copy of the erased recording is left"
    local = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert all(path.name.startswith(("jobs.db", "lock")) for path in local), local


@pytest.mark.parametrize(
    ("moment", "error"), [("queued", DeniedError), ("running", UnavailableError)]
)
def test_storage_that_is_away_is_waited_for_however_long(
    client, held, transcriber, away, moment, error
) -> None:
    """Throttled, cut off or with expired credentials: a step has four tries, and the job waits on."""
    away.error = error
    job = submit(client, memo(3)).json()["id"]
    if moment == "running":
        until(lambda: not transcriber.engine.idle)
    away.set()
    held.set()
    until(lambda: away.looks > 12)
    assert client.get(f"{JOBS}/{job}").json()["finished_at"] is None
    refused = submit(client, memo(3))
    code = refused.json()["error"]["code"]
    assert (refused.status_code, code) in [(503, "storage_unavailable"), (500, "storage_denied")]
    assert "bucket" not in refused.text
    away.clear()
    assert ended(client, job)["state"] == "succeeded"
    assert client.get(f"{JOBS}/{job}/result").json()["text"]
    assert len(client.get(JOBS).json()["data"]) == 1


def test_a_file_that_is_denied_while_others_are_not_fails_its_job(
    client, held, objects, monkeypatch
) -> None:
    """Waiting would never end: its bucket is there, and takes others."""
    fetch, denied = objects.objects.fetch, list[str]()

    def refused(key, path):
        if "/audio-" in key:
            denied.append(key)
            raise StorageError("no", code="storage_denied")
        fetch(key, path)

    monkeypatch.setattr("forescribe.api.jobs.walk.PAUSES_S", (0.01, 0.01, 0.01))
    monkeypatch.setattr(objects.objects, "fetch", refused)
    held.set()
    job = submit(client, memo(2)).json()["id"]
    failed = ended(client, job)
    assert (failed["state"], failed["error"]["code"]) == ("failed", "storage_denied")
    assert len(denied) == 4
    monkeypatch.setattr(objects.objects, "fetch", fetch)
    assert ended(client, submit(client, memo(2)).json()["id"])["state"] == "succeeded"


def test_a_copy_for_which_there_is_no_room_is_waited_for(
    client, held, objects, monkeypatch
) -> None:
    """The local disk is full: the job waits, a client is told, and no half copy is left."""
    fetch, full, looks = objects.objects.fetch, threading.Event(), []

    def refused(key, path):
        if full.is_set():
            looks.append(key)
            raise OutputError("no space", code="storage_full")
        return fetch(key, path)

    def probe() -> None:
        if full.is_set():
            raise OutputError("no space", code="storage_full")

    monkeypatch.setattr(objects.objects, "fetch", refused)
    monkeypatch.setattr(objects, "probe", probe)
    full.set()
    job = submit(client, memo(2)).json()["id"]
    held.set()
    until(lambda: len(looks) > 0)
    answer = client.get(f"{JOBS}/{job}/audio")
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")
    assert client.get(f"{JOBS}/{job}").json()["finished_at"] is None
    assert not list((objects.root / "copies").iterdir())
    full.clear()
    assert ended(client, job)["state"] == "succeeded"
    assert client.get(f"{JOBS}/{job}/audio").content == memo(2)


def test_an_erasure_while_storage_is_away_is_finished_later(client, objects, away) -> None:
    job = submit(client, memo(2)).json()["id"]
    assert ended(client, job)["state"] == "succeeded"
    away.set()
    assert client.delete(f"{JOBS}/{job}").status_code == 503
    assert client.get(f"{JOBS}/{job}").status_code == 404
    away.clear()
    assert objects.jobs() == {job}
    client.app.state.jobs.erase_expired()
    assert objects.jobs() == set()


def test_a_front_end_accepts_jobs_and_refuses_what_needs_a_model(
    tmp_path, transcriber, decoders, objects
) -> None:
    machines = {
        "front_end": True,
        "database_url": "postgresql://db/forescribe",
        "blobs_url": "s3://bucket/service",
    }
    with application(tmp_path / "data", transcriber, decoders, files=objects, **machines) as client:
        ready(client)
        assert client.get("/ready").status_code == 200 and client.app.state.serving.session is None
        for route in ("/v1/audio/transcriptions", "/v1/audio/translations", "/predict"):
            refused = client.post(route, files={"file": ("a.wav", memo(1))})
            assert refused.status_code == 404 and "Not Found" in refused.text
        job = submit(client, memo(2))
        assert job.status_code == 202 and job.json()["state"] == "queued"
        assert submit(client, b"not audio").status_code == 400
        unknown = submit(client, memo(2), language="klingon")
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "language")
        assert client.get("/v1/models").status_code == 200
        assert client.app.state.jobs.worker.concurrency == 0  # it delivers callbacks only
        assert client.post(f"{JOBS}/{job.json()['id']}/cancel").json()["state"] == "cancelled"


def test_a_worker_answers_operators_only(tmp_path, transcriber, decoders) -> None:
    from fastapi.testclient import TestClient

    key = {"team": digest(new_key())}
    made = application(tmp_path, transcriber, decoders, api_keys=key).app.state
    app = create_worker_app(made.settings, made.serving, made.jobs, failed=lambda failure: None)
    with TestClient(app, base_url="http://10.0.0.7:9000") as client:
        until(lambda: made.serving.life.state == "ready")
        assert client.get("/health").text == client.get("/ready").text == "OK"
        assert "forescribe_jobs_open 0.0" in client.get("/metrics").text
        for route in ("/", "/v1/jobs", "/v1/audio/transcriptions", "/docs", "/openapi.json"):
            assert client.get(route).status_code == 404
