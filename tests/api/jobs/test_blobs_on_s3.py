"""Blobs in a real S3 server: an emulator in a process and an environment of its own."""

from __future__ import annotations

import io
import os

import pytest
import sqlalchemy as sa

from forescribe.api.jobs.service import open_objects
from forescribe.api.jobs.store import Store
from forescribe.api.jobs.tables import REFERENCES
from forescribe.asr.errors import UsageError
from tests.asr.storage.emulator import moto_environment, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    with running(moto_environment(tmp_path_factory.mktemp("moto") / "env")) as server:
        server.make_bucket("service")
        yield server


@pytest.fixture(autouse=True)
def credentials(s3, monkeypatch):
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)


def test_blobs_live_in_s3(tmp_path) -> None:
    made = [open_objects("s3://service/here", tmp_path / name, 1 << 30) for name in ("a", "b")]
    first, second = made
    elsewhere = open_objects("s3://service/there", tmp_path / "c", 1 << 30)
    assert first.place == second.place != elsewhere.place
    data = os.urandom(20 << 20)  # in parts
    name = first.copy(io.BytesIO(data)).commit()
    with second.held(name) as path:
        assert path.read_bytes() == data
    small = second.put(b"words")
    assert first.read(small) == b"words" and sorted(second.names()) == sorted([name, small])
    assert list(second.names(older_s=3600.0)) == []
    first.delete(name)
    with pytest.raises(FileNotFoundError):
        second.read(name)

    stores = [Store.open(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}", blobs) for blobs in made]
    assert stores[0].references.sweep_objects(-60.0) == 1  # `small`, which no row refers to
    assert list(first.names()) == []
    with stores[0].database.engine.connect() as tx:
        assert tx.execute(sa.select(REFERENCES)).all() == []
    for store in stores:
        store.close()


def test_a_bucket_that_does_not_exist_is_told_at_the_start(tmp_path) -> None:
    with pytest.raises(UsageError, match="blobs_url: s3://nowhere/here") as caught:
        open_objects("s3://nowhere/here", tmp_path, 1 << 30)
    assert "secret-of-the-test" not in str(caught.value)
