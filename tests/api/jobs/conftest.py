"""A service with jobs, in which nothing waits for long."""

from __future__ import annotations

import pytest

from tests.api.jobs.application import application, ready


@pytest.fixture(autouse=True)
def short_waits(monkeypatch) -> None:
    monkeypatch.setattr("forescribe.api.jobs.walk.PAUSES_S", (0.02, 0.02, 0.02))
    monkeypatch.setattr("forescribe.api.jobs.walk.AWAY_S", 0.01)


@pytest.fixture
def client(tmp_path, transcriber, decoders, short_waits):
    with application(tmp_path, transcriber, decoders) as client:
        yield ready(client)
