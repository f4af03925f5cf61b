"""An application with jobs, and requests to it, for the tests of several folders."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fastapi.testclient import TestClient

from forescribe.api.app import create_app
from forescribe.api.jobs.callbacks import Webhooks
from forescribe.api.jobs.files import Files
from forescribe.api.jobs.service import Jobs
from forescribe.api.jobs.store import Store
from forescribe.api.settings import Settings
from forescribe.api.speech.serving import Serving
from forescribe.asr.audio.sandbox import Decoders
from forescribe.asr.decode.transcriber import Transcriber
from tests.api.conftest import Halves, until

JOBS = "/v1/jobs"
FORM = {"language": "de", "temperature": "0.5"}
POSTGRES = os.environ.get("FORESCRIBE_TEST_PG")


def application(
    folder: Path,
    transcriber: Transcriber,
    decoders: Decoders,
    webhooks: Webhooks | None = None,
    files: Files | None = None,
    **given: Any,
) -> TestClient:
    """Not started."""
    chosen = {"model": "random", "drain_s": 0.0, "min_free_bytes": 0, "data_dir": folder, **given}
    settings = Settings(**chosen)
    load = None if settings.front_end else lambda: transcriber
    serving = Serving(settings, load, Halves, decoders)
    store = Store.open(made(folder), None, files)
    jobs = Jobs(settings, serving, store, webhooks=webhooks)
    app = create_app(settings, serving, jobs, failed=lambda failure: None)
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


def ready(client: TestClient) -> TestClient:
    until(lambda: client.app.state.serving.life.state == "ready")
    return client


def submit(
    client: TestClient, audio: bytes, *, headers: Mapping[str, str] = {}, **fields: str
) -> Any:
    files = {"file": ("talk.wav", audio)}
    return client.post(JOBS, files=files, data={**FORM, **fields}, headers=dict(headers))


def ended(client: TestClient, job: str, seconds: float = 120.0) -> dict[str, Any]:
    """The job, once it has ended."""
    end = time.monotonic() + seconds
    while True:
        found = client.get(f"{JOBS}/{job}").json()
        if found["state"] in ("succeeded", "failed", "cancelled"):
            return found
        assert time.monotonic() < end, found
        time.sleep(0.05)


def told(lines: Iterator[str]) -> Iterator[tuple[str, int, Any]]:
    """Server-sent events: their kind, id and data."""
    found: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            found[name] = value
        elif "event" in found:
            yield found["event"], int(found["id"]), json.loads(found["data"])
            found = {}


def events(client: TestClient, job: str, after: int = 0) -> list[tuple[str, int, Any]]:
    """All of a job's logged events from behind `after` on, to its end."""
    return [event for event in _events(client, job, after) if event[0] != "stage"]


def stages(client: TestClient, job: str) -> list[str]:
    """What a job says that it does, to its end."""
    return [data["stage"] for kind, _, data in _events(client, job, 0) if kind == "stage"]


def _events(client: TestClient, job: str, after: int) -> list[tuple[str, int, Any]]:
    headers = {"Last-Event-ID": str(after)} if after else {}
    with client.stream("GET", f"{JOBS}/{job}/events", headers=headers) as answer:
        assert answer.status_code == 200
        return list(told(answer.iter_lines()))


def database_of(kind: str) -> str | None:
    """The address of a new database on PostgreSQL (what another test left would be work), or None for
    SQLite. Skips the test on machines without a PostgreSQL."""
    if kind != "postgresql":
        return None
    if not POSTGRES:
        pytest.skip("FORESCRIBE_TEST_PG names no database")
    import psycopg

    server, name = POSTGRES.rsplit("/", 1)[0], f"forescribe_{uuid4().hex[:12]}"
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        connection.execute(f'create database "{name}"')
    return f"{server}/{name}"


def files(folder: Path) -> bytes:
    """Everything that is on disk, joined."""
    return b"\0".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
