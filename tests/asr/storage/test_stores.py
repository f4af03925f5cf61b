"""Stores: objects, conditional writes, and what happens when requests or replies get lost."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forescribe.asr.errors import OutputError
from forescribe.asr.storage.errors import (
    ChangedError,
    MissingError,
    UnavailableError,
    UnsupportedError,
)
from forescribe.asr.storage.locations import Entry, Location
from forescribe.asr.storage.services import PAGE, BucketStore
from forescribe.asr.storage.stores import Store, Stores, open_store
from tests.asr.storage.emulator import S3, moto_environment, running
from tests.asr.storage.faults import LOST, OK, Fate, FaultyBucket, memory

EMULATED = pytest.param("s3", marks=pytest.mark.nightly)
"""The same promises over HTTP."""


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with running(moto_environment(tmp_path_factory.mktemp("moto") / "env")) as s3:
        yield s3


def opened(request: pytest.FixtureRequest, folder: Path) -> Store:
    if request.param == "memory":
        return open_store(memory() / "out/2026")
    if request.param == "file":
        return open_store(Location.parse(f"file://{folder}/out"))
    s3: S3 = request.getfixturevalue("emulator")
    monkeypatch = request.getfixturevalue("monkeypatch")
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    bucket = f"stores-{next(NUMBERS)}"
    s3.make_bucket(bucket)
    return open_store(Location.parse(f"s3://{bucket}/out/2026"))


NUMBERS = itertools.count()


@pytest.fixture(params=["memory", "file", EMULATED])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return opened(request, tmp_path)


@pytest.fixture(params=["memory", EMULATED])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store that knows versions."""
    return opened(request, tmp_path)


def keys(entries: list[Entry]) -> list[str]:
    return [entry.key for entry in entries]


# Objects


def test_objects_are_written_listed_read_and_deleted(store: Store) -> None:
    assert store.list() == []
    store.put("a/1.txt", b"one")
    store.put("a/b/2.txt", b"twelve")
    store.put("ab.txt", b"")
    assert keys(store.list()) == ["a/1.txt", "a/b/2.txt", "ab.txt"]
    assert keys(store.list("a")) == ["a/1.txt", "a/b/2.txt"] == keys(store.list("a/"))
    assert [entry.size for entry in store.list("a")] == [3, 6]
    assert store.read("a/1.txt") == b"one" and store.head("a/b/2.txt").size == 6
    store.delete("a/1.txt")
    store.delete("a/1.txt")
    assert keys(store.list("a")) == ["a/b/2.txt"]
    with pytest.raises(MissingError, match=r"a/1\.txt: no such object") as caught:
        store.read("a/1.txt")
    assert caught.value.code == "missing_file" and isinstance(caught.value, FileNotFoundError)


def test_a_large_file_is_copied_both_ways(store: Store, tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(os.urandom(20 << 20))
    store.put("large", source)
    entry = store.fetch("large", copy)
    assert entry.key == "large" and entry.size == 20 << 20
    assert copy.read_bytes() == source.read_bytes()


def test_an_object_is_created_once(store: Store) -> None:
    assert store.create("record", b"mine")
    assert not store.create("record", b"yours")
    assert store.create("record", b"mine")  # as after a lost reply
    assert store.read("record") == b"mine"


def test_a_version_changes_with_the_content(bucket: Store) -> None:
    bucket.put("a", b"1")
    before = bucket.head("a").version
    bucket.put("a", b"2")
    assert bucket.head("a").version != before


def test_stores_of_one_bucket_share_their_counts() -> None:
    stores, location = Stores(), memory()
    stores.at(location / "x").put("a", b"")
    store, key = stores.of(location / "x/a")
    assert key == "x/a" and store.read(key) == b""
    assert stores.at(location).requests == {"put": 1, "get": 1}


def test_a_listing_takes_one_request_per_page(bucket: Store) -> None:
    for number in range(PAGE + 1):
        bucket.put(f"{number:05}", b"")
    assert len(bucket.list()) == PAGE + 1 and bucket.requests["list"] == 2


# What is lost


def faulty(location: Location, fate: Fate, whole: int | None = None) -> FaultyBucket:
    return FaultyBucket(open_store(location), fate, whole)


def test_a_copy_that_breaks_off_continues_where_it_was(tmp_path: Path) -> None:
    location, data = memory(), os.urandom(3 << 20)
    open_store(location).put("a", data)
    store = faulty(location, lambda where, kind: OK, whole=700_000)
    store.fetch("a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == data and store.requests["get"] == 2


def test_a_copy_without_progress_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, asked, waited = memory(), [], []
    monkeypatch.setattr("forescribe.asr.storage.store.time.sleep", waited.append)
    open_store(location).put("a", b"1" * 100)

    def lost(where: Location, kind: str) -> str:
        asked.append(kind)
        return LOST if kind == "get" else OK

    with pytest.raises(UnavailableError, match=f"{location / 'a'}.*503, SlowDown"):
        faulty(location, lost).fetch("a", tmp_path / "a")
    assert asked == ["get"] * 2 and len(waited) == 1  # the library has repeated each
    assert not (tmp_path / "a").exists()


def test_a_copy_is_of_one_version(tmp_path: Path) -> None:
    location, gets = memory(), []
    open_store(location).put("a", b"1" * 100)

    def fate(where: Location, kind: str) -> str:
        gets.append(kind)
        if len(gets) == 2:  # it broke off before
            open_store(location).put("a", b"2" * 100)
        return OK

    with pytest.raises(ChangedError, match="changed while it was used"):
        faulty(location, fate, whole=10).fetch("a", tmp_path / "a")
    assert gets == ["get", "get"] and not (tmp_path / "a").exists()


def test_a_full_disk_is_an_error_of_the_disk(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    store = open_store(memory())
    store.put("a", b"1" * 100)
    (tmp_path / "a").symlink_to("/dev/full")
    with pytest.raises(OutputError, match="--spool") as caught:
        store.fetch("a", tmp_path / "a")
    assert caught.value.code == "storage_full"


def test_what_is_too_large_is_not_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forescribe.asr.storage.store.SMALL", 100)
    store = open_store(memory())
    store.put("a", b"1" * 100)
    store.put("b", b"1" * 101)
    assert len(store.read("a")) == 100
    with pytest.raises(UnsupportedError, match="101 bytes or more are too many"):
        store.read("b")


# Conditions


def test_a_store_that_ignores_conditions_is_found_out() -> None:
    class Careless(BucketStore):
        def create(self, key, data):
            self.put(key, data)
            return True

    location = memory()
    inner = open_store(location)
    careless = Careless(location, inner.connection, inner.requests)
    with pytest.raises(UnsupportedError, match="If-None-Match"):
        careless.check_create()
    assert open_store(location).list() == []
    open_store(location).check_create()
    assert open_store(location).list() == []
