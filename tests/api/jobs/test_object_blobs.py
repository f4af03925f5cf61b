"""Blobs in object storage: complete or absent, no name twice, copies bounded, every read checked."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from pathlib import Path

import pytest

from forescribe.api.jobs.object_blobs import NAME, BlobCache, ObjectBlobs, _key
from forescribe.asr.errors import StorageError
from forescribe.asr.storage.locations import Location
from forescribe.asr.storage.stores import open_store
from tests.api.conftest import until


def blobs_in(bucket: Path, folder: Path, cache_bytes: int = 1 << 30) -> ObjectBlobs:
    bucket.mkdir(exist_ok=True)
    return ObjectBlobs(open_store(Location.parse(f"file://{bucket}")), folder, cache_bytes)


@pytest.fixture
def blobs(tmp_path) -> ObjectBlobs:
    return blobs_in(tmp_path / "bucket", tmp_path / "own")


def test_a_blob_is_named_by_its_bytes_and_no_name_is_used_twice(blobs) -> None:
    first, second = blobs.put(b"sound"), blobs.put(b"sound")
    assert first != second and {first[:64], second[:64]} == {hashlib.sha256(b"sound").hexdigest()}
    assert all(NAME.fullmatch(name) for name in (first, second))
    assert blobs.read(first) == blobs.read(second) == b"sound"
    assert sorted(blobs.names()) == sorted([first, second])
    assert list(blobs.names(older_s=3600.0)) == []
    blobs.delete(first)
    blobs.delete(first)
    assert list(blobs.names()) == [second] and blobs.read(second) == b"sound"
    for read in (blobs.read, blobs.local):
        with pytest.raises(FileNotFoundError):
            read(first)
    with pytest.raises(ValueError, match="not a blob's name"):
        blobs.read("../../etc/passwd")


def test_a_copy_is_a_draft_until_it_is_committed(blobs, tmp_path) -> None:
    data = os.urandom(3 << 20)
    draft = blobs.copy(io.BytesIO(data))
    draft.flush()
    assert draft.size == len(data) and draft.path.read_bytes() == data and not list(blobs.names())
    name = draft.commit()
    assert name.startswith(hashlib.sha256(data).hexdigest())
    draft.discard()
    with blobs.held(name) as path:
        assert path.read_bytes() == data
    lost = blobs.copy(io.BytesIO(b"x"))
    lost.discard()
    assert not list((tmp_path / "own" / "drafts").iterdir())


def test_what_a_dead_process_left_locally_is_removed_at_the_start(blobs, tmp_path) -> None:
    draft = blobs.draft()
    draft.write(b"half")
    draft._file.close()
    blobs.local(blobs.put(b"sound"))
    left = [p for p in (tmp_path / "own").rglob("*") if p.is_file()]
    assert len(left) == 2
    again = blobs_in(tmp_path / "bucket", tmp_path / "own")
    assert not [p for p in (tmp_path / "own").rglob("*") if p.is_file()]
    again.local(again.put(b"more"))
    again.close()
    assert not [p for p in (tmp_path / "own").rglob("*") if p.is_file()]
    assert again.place == blobs.place  # the same store, for every process
    other = blobs_in(tmp_path / "another", tmp_path / "third")
    assert other.place != blobs.place


def test_a_damaged_object_is_not_taken_for_the_recording(blobs) -> None:
    name = blobs.put(b"sound")
    blobs.objects.put(_key(name), b"noise")
    with pytest.raises(StorageError, match="damaged"):
        blobs.read(name)
    with pytest.raises(StorageError, match="damaged"):
        blobs.local(name)
    assert blobs.cache.bytes == 0


def fake_cache(folder: Path, max_bytes: int, **sizes: int):
    """A cache of blobs with these sizes; `fetched` lists them in order."""
    fetched: list[str] = []
    now = [0.0]

    def fetch(name: str, path: Path) -> None:
        fetched.append(name)
        path.write_bytes(b"x" * sizes[name])

    cache = BlobCache(folder, max_bytes, sizes.__getitem__, fetch, lambda: now[0])
    return cache, fetched, now


def test_copies_make_room_for_others_the_longest_unused_first(tmp_path) -> None:
    cache, fetched, now = fake_cache(tmp_path, 100, a=40, b=40, c=40)
    for at, name in enumerate("abac"):
        now[0] = at
        with cache.held(name) as path:
            assert path.stat().st_size == 40
    assert fetched == ["a", "b", "c"] and cache.bytes == 80
    now[0] = 50.0
    with cache.held("a"):  # still there; b has left
        assert fetched == ["a", "b", "c"]
    now[0] = 100.0
    assert cache.trim(60.0) == 1 and cache.trim(0.0) == 1 and cache.bytes == 0
    assert list(tmp_path.iterdir()) == []


def test_a_copy_in_use_stays_and_the_next_one_waits_for_room(tmp_path) -> None:
    cache, fetched, _ = fake_cache(tmp_path, 50, a=40, b=40, huge=99)
    entered = threading.Event()

    def other(name: str) -> None:
        with cache.held(name):
            entered.set()

    with cache.held("a") as path:
        thread = threading.Thread(target=other, args=("b",))
        thread.start()
        assert not entered.wait(0.2) and path.exists()
    assert entered.wait(30)
    thread.join()
    with cache.held("huge") as path:  # alone, if it does not fit at all
        assert path.stat().st_size == 99
    assert fetched == ["a", "b", "huge"]


def test_one_fetch_serves_all_who_wait_for_it_and_a_failed_one_none(tmp_path) -> None:
    go, count = threading.Event(), [0]

    def fetch(name: str, path: Path) -> None:
        count[0] += 1
        go.wait(30)
        if count[0] == 1:
            raise OSError("cut off")
        path.write_bytes(b"x")

    cache = BlobCache(tmp_path, 100, lambda name: 1, fetch)
    ended: list[str] = []

    def use() -> None:
        try:
            with cache.held("a") as path:
                ended.append(path.read_text())
        except OSError:
            ended.append("failed")

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: count[0] == 1)
    go.set()
    for thread in threads:
        thread.join()
    assert sorted(ended) == ["failed", "x", "x", "x"] and count[0] == 2


def test_a_copy_of_a_deleted_blob_leaves_with_its_last_user(tmp_path) -> None:
    cache, fetched, _ = fake_cache(tmp_path, 100, a=10)
    with cache.held("a") as path:
        cache.drop("a")
        assert path.exists()
    assert not path.exists() and cache.bytes == 0
    with cache.held("a"):
        pass
    cache.drop("a")
    assert fetched == ["a", "a"] and list(tmp_path.iterdir()) == []
