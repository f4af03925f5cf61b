"""Stores: objects, conditional writes, and what happens when requests or replies get lost."""

from __future__ import annotations

import itertools
import os
import re
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
from forescribe.asr.storage.obstore_backend import PAGE, ObstoreBackend
from forescribe.asr.storage.stores import Retries, Store, Stores, open_store
from tests.asr.storage.emulator import S3, moto_environment, running
from tests.asr.storage.faults import (
    LOST,
    OK,
    REPLY_LOST,
    FaultyBackend,
    faulty_store,
    memory,
    quick,
)

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
    assert not store.create("record", b"yours") and not store.create("record", b"mine")
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
    assert stores.requests() == 2 and stores.at(location).requests == {"put": 1, "get": 1}


def test_a_listing_takes_one_request_per_page(bucket: Store) -> None:
    for number in range(PAGE + 1):
        bucket.put(f"{number:05}", b"")
    assert len(bucket.list()) == PAGE + 1 and bucket.requests["list"] == 2


# What is lost


def test_requests_are_repeated_until_they_succeed() -> None:
    fates = iter([LOST, LOST, OK])
    store = faulty_store(memory(), lambda kind: next(fates, OK))
    store.put("a", b"1")
    assert store.read("a") == b"1" and store.requests["put"] == 1


@pytest.mark.parametrize("request_", ["put", "create", "get", "list", "head"])
def test_attempts_are_bounded_and_the_last_error_says_how_many(request_: str) -> None:
    fate = {"now": OK}
    store = faulty_store(memory(), lambda kind: fate["now"], attempts=3)
    store.put("a", b"1")
    fate["now"] = LOST
    calls = {
        "put": lambda: store.put("b", b""),
        "create": lambda: store.create("b", b""),
        "get": lambda: store.read("a"),
        "list": lambda: store.list(),
        "head": lambda: store.head("a"),
    }
    with pytest.raises(UnavailableError, match=r"503, SlowDown\) \(3 attempts\)"):
        calls[request_]()


def test_waiting_grows_with_jitter_and_ends_in_time() -> None:
    waited: list[float] = []
    clock = itertools.count()
    retries = Retries(
        attempts=50, first_s=1, longest_s=8, total_s=30, sleep=waited.append,
        clock=lambda: sum(waited) + next(clock) * 0, draw=lambda: 0.5,
    )  # fmt: skip
    store = Store(
        FaultyBackend(ObstoreBackend(where := memory()), lambda kind: LOST), where, retries
    )
    with pytest.raises(UnavailableError):
        store.put("a", b"")
    assert waited[:5] == [1.0, 2.0, 4.0, 4.0, 4.0] and sum(waited) <= 30
    assert 0 <= Retries().draw() < 1


def test_what_is_refused_is_not_repeated() -> None:
    asked: list[str] = []
    store = faulty_store(memory(), lambda kind: asked.append(kind) or OK)
    with pytest.raises(MissingError):
        store.read("nope")
    assert asked == ["get"]


def test_a_created_object_is_ours_even_if_the_reply_was_lost() -> None:
    location = memory()
    fates = iter([REPLY_LOST])
    store = faulty_store(location, lambda kind: next(fates, OK))
    assert store.create("record", b"mine")
    assert not open_store(location).create("record", b"yours")


def test_a_lost_request_does_not_make_somebody_elses_object_ours() -> None:
    location = memory()
    open_store(location).create("record", b"yours")
    fates = iter([LOST])
    assert not faulty_store(location, lambda kind: next(fates, OK)).create("record", b"mine")


def test_a_listing_that_breaks_off_continues_where_it_was() -> None:
    location = memory()
    for number in range(5):
        open_store(location).put(str(number), b"")
    fates = iter([REPLY_LOST, REPLY_LOST, LOST])
    store = faulty_store(location, lambda kind: next(fates, OK))
    assert keys(store.list()) == ["0", "1", "2", "3", "4"]


def test_a_copy_that_breaks_off_continues_where_it_was(tmp_path: Path) -> None:
    location, data = memory(), os.urandom(3 << 20)
    open_store(location).put("a", data)
    store = faulty_store(location, lambda kind: OK, whole=700_000)
    store.fetch("a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == data
    assert store.requests["get"] >= 4  # a break in every piece


class Short(FaultyBackend):
    """Bodies that end after `most` bytes, without an error."""

    most = 7

    def _pieces(self, key, start, pieces):
        yield next(pieces)[: self.most]


def test_a_copy_of_one_byte_that_breaks_off_behind_it_is_complete(tmp_path: Path) -> None:
    location = memory()
    open_store(location).put("a", b"1")
    store = faulty_store(location, lambda kind: OK, whole=1)
    store.fetch("a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"1" and store.requests["get"] == 1


def test_a_copy_that_always_ends_too_early_is_an_error_with_its_name(tmp_path: Path) -> None:
    location = memory()
    open_store(location).put("a", b"1" * 100)
    backend = Short(ObstoreBackend(location), lambda kind: OK)
    store = Store(backend, location, quick())
    store.fetch("a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"1" * 100
    backend.most = 0
    with pytest.raises(UnavailableError, match=re.escape(f"{location / 'a'}")):
        store.fetch("a", tmp_path / "b")


def test_a_whole_copy_takes_one_request_and_no_pause(tmp_path: Path) -> None:
    location = memory()
    open_store(location).put("a", b"1" * 100)
    store = open_store(location, retries=Retries(sleep=pytest.fail))
    store.fetch("a", tmp_path / "a")
    assert store.requests["get"] == 1


def test_what_is_too_large_is_not_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forescribe.asr.storage.stores.SMALL", 100)
    store = open_store(memory())
    store.put("a", b"1" * 100)
    store.put("b", b"1" * 101)
    assert len(store.read("a")) == 100
    with pytest.raises(UnsupportedError, match="101 bytes or more are too many"):
        store.read("b")


def test_without_retries_of_its_own_a_store_waits_for_most_of_a_minute() -> None:
    given = quick()
    assert Stores(given).retries is given
    assert Stores().retries == Retries() and Retries().patience_s == 51.5


def test_a_copy_is_of_one_version(tmp_path: Path) -> None:
    location, gets = memory(), []
    open_store(location).put("a", b"1" * 100)

    def fate(kind: str) -> str:
        gets.append(kind)
        if len(gets) == 2:  # it broke off before
            open_store(location).put("a", b"2" * 100)
        return OK

    with pytest.raises(ChangedError, match="changed while it was used"):
        faulty_store(location, fate, whole=10).fetch("a", tmp_path / "a")
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


# Damage


class Damaging(FaultyBackend):
    """S3 whose bodies arrive changed as long as `damage` says so."""

    def __init__(self, location: Location, damage: list[bytes], etag: str) -> None:
        super().__init__(ObstoreBackend(location), lambda kind: OK)
        self.damage, self.etag = damage, etag

    def _pieces(self, key, start, pieces):
        for piece in pieces:
            yield self.damage.pop(0) if self.damage else piece

    def read(self, key, start=0, etag=None):
        from contextlib import contextmanager
        from dataclasses import replace

        @contextmanager
        def reading():
            with FaultyBackend.read(self, key, start) as found:
                yield replace(found, entry=replace(found.entry, etag=self.etag))

        return reading()


def damaging_store(damage: list[bytes], etag: str = '"81dc9bdb52d04dc20036dbd8313ed055"') -> Store:
    location = memory()
    open_store(location).put("a", b"1234")  # the tag is its MD5
    s3 = Location("s3", location.host)
    return Store(Damaging(location, damage, etag), s3, quick())


def test_a_damaged_copy_is_fetched_again(tmp_path: Path) -> None:
    store = damaging_store([b"12x4"])
    store.fetch("a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"1234" and store.requests["get"] == 2


def test_damage_without_end_is_an_error(tmp_path: Path) -> None:
    store = damaging_store([b"12x4", b"1x34", b"x234", b"123x"])
    with pytest.raises(UnavailableError, match="damaged"):
        store.fetch("a", tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_tag_that_is_no_md5_costs_one_more_request_once(tmp_path: Path) -> None:
    store = damaging_store([], etag='"00000000000000000000000000000000"')
    store.fetch("a", tmp_path / "a")
    store.fetch("a", tmp_path / "b")
    assert store.requests["get"] == 3 and (tmp_path / "b").read_bytes() == b"1234"


# Conditions


def test_a_store_that_ignores_conditions_is_found_out() -> None:
    class Careless(FaultyBackend):
        def create(self, key, data):
            return self.inner.put(key, data)

    location = memory()
    careless = Store(Careless(ObstoreBackend(location), lambda kind: OK), location, quick())
    with pytest.raises(UnsupportedError, match="If-None-Match"):
        careless.check_create()
    assert open_store(location).list() == []
    open_store(location).check_create()
    assert open_store(location).list() == []
