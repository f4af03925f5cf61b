"""Services that would lose something do not start: each refusal names the setting to change."""

from __future__ import annotations

import pytest

from forescribe.api.jobs import recovery
from forescribe.api.jobs.store import Store
from forescribe.api.server import worker_settings
from forescribe.api.settings import Settings, load
from forescribe.asr.errors import CapacityError, UsageError
from forescribe.asr.storage.errors import DeniedError, UnavailableError
from forescribe.asr.storage.locations import Location
from tests.api.jobs.test_object_blobs import blobs_in

POSTGRES = "postgresql://user:secret@db/forescribe"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"blobs_url": "s3://b/p"}, "blobs_url needs a database.*database_url = postgresql"),
        ({"blobs_url": "s3://b/p", "database_url": "sqlite:///x"}, "SQLite is a file"),
        ({"front_end": True}, "front_end needs a database"),
        ({"front_end": True, "database_url": POSTGRES, "jobs": False}, "jobs = true"),
        ({"front_end": True, "database_url": POSTGRES, "text_model": "x"}, "text_model"),
        ({"blobs_url": "hf://a/b", "database_url": POSTGRES}, "hf:// cannot be written"),
        ({"blobs_url": "/srv/blobs", "database_url": POSTGRES}, "blobs_url: .* no URL"),
        (
            {"blobs_url": "s3://b", "database_url": POSTGRES, "blob_cache_bytes": 1000},
            "blob_cache_bytes 1000 is less than max_upload_bytes",
        ),
    ],
)
def test_settings_that_lose_something_are_refused(given, told) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        load(None, **given)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "--database postgresql"),
        ({"database_url": "sqlite:////tmp/x.db"}, "SQLite"),
        ({"database_url": POSTGRES, "front_end": True}, "front_end"),
        ({"database_url": POSTGRES, "workers": 2}, "one for each instead of workers"),
        ({"database_url": POSTGRES, "jobs": False}, "jobs = true"),
    ],
)
def test_settings_that_make_no_sense_for_a_worker_are_refused(given, told) -> None:
    with pytest.raises(UsageError, match=told):
        worker_settings(Settings(**given))
    good = worker_settings(Settings(database_url=POSTGRES, blobs_url="s3://b/p", text_model="x"))
    assert good.announce_s == 0.0 and good.text_model is None


class Others:
    """Processes that beat while this one sleeps; `clock` is that of this one."""

    def __init__(self, store: Store, *alive: str) -> None:
        self.store, self.alive, self.now = store, alive, 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for name in self.alive:
            self.store.heartbeats.beat(name, ())


def stores(tmp_path):
    """Two stores with one database and a folder each, as two machines have."""
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        found.append(Store.open(tmp_path / name, f"sqlite:///{tmp_path / 'jobs.db'}"))
    return found


def test_a_living_process_with_another_folder_is_not_joined(tmp_path) -> None:
    one, two = stores(tmp_path)
    others = Others(one, "a")
    recovery.join(one, "a", others.sleep, others.clock)
    with pytest.raises(UsageError, match="same blobs_url for all, or the same data_dir"):
        recovery.join(two, "b", others.sleep, others.clock)
    assert "b" not in two.heartbeats.all()
    same = Store.open(tmp_path / "one", f"sqlite:///{tmp_path / 'jobs.db'}")
    recovery.join(same, "c", others.sleep, others.clock)
    assert others.now < recovery.WATCH_S  # nothing to watch
    for store in (one, two, same):
        store.close()


def test_a_dead_process_with_another_folder_is_no_reason_to_refuse(tmp_path) -> None:
    one, two = stores(tmp_path)
    one.heartbeats.beat("a", ())
    others = Others(one)
    recovery.join(two, "b", others.sleep, others.clock)
    assert others.now >= recovery.WATCH_S and "b" in two.heartbeats.all()
    for store in (one, two):
        store.close()


def test_two_processes_that_start_together_do_not_both_stay(tmp_path) -> None:
    one, two = stores(tmp_path)
    together = Others(one)

    def sleep(seconds: float) -> None:
        together.now += seconds
        one.heartbeats.beat("a", ())  # as it watches in turn

    one.heartbeats.beat("a", ())
    with pytest.raises(UsageError):
        recovery.join(two, "b", sleep, together.clock)
    for store in (one, two):
        store.close()


def test_objects_are_one_place_for_all_folders(tmp_path) -> None:
    made = [
        Store.open(
            tmp_path,
            f"sqlite:///{tmp_path / 'jobs.db'}",
            blobs_in(tmp_path / "bucket", tmp_path / name),
        )
        for name in ("one", "two")
    ]
    others = Others(made[0], "a")
    recovery.join(made[0], "a", others.sleep, others.clock)
    recovery.join(made[1], "b", others.sleep, others.clock)
    assert others.now == 0.0
    folder = Store.open(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}")
    with pytest.raises(UsageError):
        recovery.join(folder, "c", others.sleep, others.clock)
    for store in (*made, folder):
        store.close()


@pytest.mark.parametrize(
    ("error", "kind"), [(DeniedError, UsageError), (UnavailableError, CapacityError)]
)
def test_storage_that_cannot_be_used_is_told_at_the_start(
    tmp_path, monkeypatch, error, kind
) -> None:
    """Wrong credentials stay wrong; a store that does not answer may come back (exit status 75)."""

    def refuse(self, *_):
        raise error(Location.parse("s3://bucket/service"), "refused")

    monkeypatch.setattr("forescribe.asr.storage.buckets.BucketStore.create", refuse)
    (tmp_path / "bucket").mkdir()
    with pytest.raises(kind, match="blobs_url: s3://bucket/service"):
        recovery.open_objects(f"file://{tmp_path / 'bucket'}", tmp_path / "own", 1 << 30)
