"""Stores: objects, conditional writes, and what happens when requests or replies get lost."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forescribe.asr.errors import OutputError
from forescribe.asr.storage.errors import MissingError, UnavailableError, UnsupportedError
from forescribe.asr.storage.locations import Entry, Location
from forescribe.asr.storage.stores import BucketStore, Store, Stores
from tests.asr.storage.emulator import S3, running
from tests.asr.storage.faults import LOST, OK, Fate, FaultyBucket, memory


@pytest.fixture(scope="module")
def emulator() -> Iterator[S3]:
    with running() as s3:
        yield s3


@pytest.fixture(params=["memory", "file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return Stores().at(memory() / "out/2026")
    if request.param == "file":
        return Stores().at(Location.parse(f"file://{tmp_path}/out"))
    s3: S3 = request.getfixturevalue("emulator")
    monkeypatch = request.getfixturevalue("monkeypatch")
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    bucket = f"stores-{next(NUMBERS)}"
    s3.make_bucket(bucket)
    return Stores().at(Location.parse(f"s3://{bucket}/out/2026"))


NUMBERS = itertools.count()


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
    before = store.head("a/1.txt").version
    store.put("a/1.txt", b"others")
    assert store.head("a/1.txt").version != before
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
    told = list[int]()
    entry = store.fetch("large", copy, progress=told.append)
    assert told[-1] == entry.size and told == sorted(set(told)), "bytes so far"
    assert entry.key == "large" and entry.size == 20 << 20
    assert copy.read_bytes() == source.read_bytes()


def test_an_object_is_created_once(store: Store) -> None:
    assert store.create("record", b"mine")
    assert not store.create("record", b"yours")
    assert store.create("record", b"mine")  # as after a lost reply
    assert store.read("record") == b"mine"


# What is lost


def faulty(location: Location, fate: Fate, whole: int | None = None) -> FaultyBucket:
    return FaultyBucket(Stores().at(location), fate, whole)


def test_a_copy_that_is_lost_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    location, asked = memory(), []
    Stores().at(location).put("a", b"1" * 100)

    def lost(where: Location, kind: str) -> str:
        asked.append(kind)
        return LOST if kind == "get" else OK

    with pytest.raises(UnavailableError, match=f"{location / 'a'}.*503, SlowDown"):
        faulty(location, lost).fetch("a", tmp_path / "a")
    assert asked == ["get"]  # the library has repeated it
    with pytest.raises(UnavailableError):  # in the middle of it
        faulty(location, lambda where, kind: OK, whole=10).fetch("a", tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_full_disk_is_an_error_of_the_disk(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    store = Stores().at(memory())
    store.put("a", b"1" * 100)
    (tmp_path / "a").symlink_to("/dev/full")
    with pytest.raises(OutputError, match="--spool") as caught:
        store.fetch("a", tmp_path / "a")
    assert caught.value.code == "storage_full"


def test_what_is_too_large_is_not_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forescribe.asr.storage.store.SMALL", 100)
    store = Stores().at(memory())
    store.put("a", b"1" * 100)
    store.put("b", b"1" * 101)
    assert len(store.read("a")) == 100
    with pytest.raises(UnsupportedError, match="more than 100 bytes are too many"):
        store.read("b")


# Conditions


def test_a_store_that_ignores_conditions_is_found_out() -> None:
    class Careless(BucketStore):
        def create(self, key, data):
            self.put(key, data)
            return True

    location = memory()
    inner = Stores().at(location)
    careless = Careless(location, inner.connection, inner.requests)
    with pytest.raises(UnsupportedError, match="If-None-Match"):
        careless.check_create()
    assert Stores().at(location).list() == []
    Stores().at(location).check_create()
    assert Stores().at(location).list() == []
