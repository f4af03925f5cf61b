"""The files of jobs, in a folder and in a bucket: whole or absent, no name twice, copies bounded."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from forescribe.api.jobs.files import Copies, DiskFiles, ObjectFiles
from forescribe.api.jobs.service import open_objects
from forescribe.asr.errors import OutputError, StorageError, UsageError
from forescribe.asr.storage.locations import Location
from forescribe.asr.storage.stores import open_store
from tests.api.conftest import until
from tests.asr.storage.emulator import running

ROOT = Path(__file__).parents[3]


def objects_in(bucket: Path, folder: Path, cache_bytes: int = 1 << 30) -> ObjectFiles:
    bucket.mkdir(exist_ok=True)
    return ObjectFiles(open_store(Location.parse(f"file://{bucket}")), folder, cache_bytes)


@pytest.fixture(params=["disk", "objects"])
def files(request, tmp_path) -> DiskFiles | ObjectFiles:
    if request.param == "disk":
        return DiskFiles(tmp_path / "own")
    return objects_in(tmp_path / "bucket", tmp_path / "own")


def test_files_of_one_role_are_two_and_leave_with_their_job(files, tmp_path) -> None:
    first, second = files.put("a", "audio", b"sound"), files.put("a", "audio", b"sound")
    other = files.put("b", "audio", b"sound")
    assert first != second and first.startswith("audio-")
    assert files.read("a", first) == files.read("a", second) == b"sound"
    with files.held("a", first) as path:
        assert path.read_bytes() == b"sound"
    files.delete("a", first)
    files.delete("a", first)
    for read in (files.read, lambda *name: files.held(*name).__enter__()):
        with pytest.raises(FileNotFoundError):
            read("a", first)
    assert files.read("a", second) == b"sound" and files.jobs() == {"a", "b"}
    files.delete_all("a")
    files.delete_all("a")
    assert files.jobs() == {"b"} and files.read("b", other) == b"sound"
    files.delete("b", other)
    assert files.jobs() == set()
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "identity"]


def test_a_whole_file_is_stored_wherever_it_stands(files, tmp_path) -> None:
    data = os.urandom(3 << 20)
    with (tmp_path / "upload").open("w+b") as file:
        file.write(data)  # not flushed, and at its end
        name = files.put("a", "audio", file)
    with files.held("a", name) as path:
        assert path.read_bytes() == data
    files.probe()


def test_processes_with_the_same_files_know_it(tmp_path) -> None:
    same = [DiskFiles(tmp_path / "own").place for _ in range(2)]
    assert same[0] == same[1] != DiskFiles(tmp_path / "other").place
    one, two = (objects_in(tmp_path / "bucket", tmp_path / name) for name in "ab")
    assert one.place == two.place != objects_in(tmp_path / "another", tmp_path / "c").place


def test_a_process_that_dies_in_mid_write_leaves_nothing_but_in_its_jobs_folder(tmp_path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from forescribe.api.jobs import files\n"
        "files._copy = lambda data, file: (file.write(b'half'), file.flush(), "
        "os.kill(os.getpid(), signal.SIGKILL))\n"
        f"files.DiskFiles(Path({str(tmp_path)!r})).put('a', 'plan', b'whole')"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT)
    assert run.returncode == -signal.SIGKILL
    files = DiskFiles(tmp_path)
    assert files.jobs() == {"a"}
    files.delete_all("a")
    assert files.jobs() == set()


class Full(io.BytesIO):
    """A recording of which only the first megabyte can be stored."""

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell():
            raise OSError(28, "No space left on device")
        return super().read(size)


def test_a_full_disk_is_named_and_keeps_no_half_file(tmp_path) -> None:
    files = DiskFiles(tmp_path)
    with pytest.raises(OutputError) as caught:
        files.put("a", "audio", Full(b"x" * (2 << 20)))
    assert caught.value.code == "storage_full"
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "identity"]


def test_copies_of_a_dead_process_are_removed_at_the_start(tmp_path) -> None:
    def local() -> list[Path]:
        return [p for p in (tmp_path / "own").rglob("*") if p.is_file()]

    files = objects_in(tmp_path / "bucket", tmp_path / "own")
    with files.held("a", files.put("a", "audio", b"sound")):
        pass
    assert len(local()) == 1
    files = objects_in(tmp_path / "bucket", tmp_path / "own")
    assert not local()
    with files.held("a", files.put("a", "audio", b"more")):
        files.trim(0.0)
        assert len(local()) == 1  # in use
    files.trim(0.0)
    assert not local()


class Fake:
    """Copies of objects with these sizes; `fetched` lists them in order."""

    def __init__(self, folder: Path, max_bytes: int, **sizes: int) -> None:
        self.sizes, self.fetched, self.now = sizes, list[str](), 0.0
        self.copies = Copies(folder, max_bytes, lambda: self.now)

    def held(self, name: str):
        def fetch(path: Path) -> None:
            self.fetched.append(name)
            path.write_bytes(b"x" * self.sizes[name])

        return self.copies.held(name, lambda: self.sizes[name], fetch)


def test_copies_make_room_for_others_the_longest_unused_first(tmp_path) -> None:
    fake = Fake(tmp_path, 100, a=40, b=40, c=40)
    for at, name in enumerate("abac"):
        fake.now = at
        with fake.held(name) as path:
            assert path.stat().st_size == 40
    assert fake.fetched == ["a", "b", "c"] and len(list(tmp_path.iterdir())) == 2
    fake.now = 50.0
    with fake.held("a"):  # still there; b has left
        assert fake.fetched == ["a", "b", "c"]
    fake.now = 100.0
    fake.copies.trim(60.0)
    assert len(list(tmp_path.iterdir())) == 1  # c was used longer ago
    fake.copies.trim(0.0)
    assert list(tmp_path.iterdir()) == []


def test_a_copy_in_use_stays_and_the_next_one_waits_for_room(tmp_path) -> None:
    fake = Fake(tmp_path, 50, a=40, b=40, huge=99)
    entered = threading.Event()

    def other() -> None:
        with fake.held("b"):
            entered.set()

    with fake.held("a") as path:
        thread = threading.Thread(target=other)
        thread.start()
        assert not entered.wait(0.2) and path.exists()
    assert entered.wait(30)
    thread.join()
    with fake.held("huge") as path:  # alone, if it does not fit at all
        assert path.stat().st_size == 99
    assert fake.fetched == ["a", "b", "huge"]


def test_one_fetch_serves_all_who_wait_for_it_and_a_failed_one_none(tmp_path) -> None:
    go, count = threading.Event(), [0]
    copies, ended = Copies(tmp_path, 100), list[str]()

    def fetch(path: Path) -> None:
        count[0] += 1
        go.wait(30)
        if count[0] == 1:
            raise OSError("cut off")
        path.write_bytes(b"x")

    def use() -> None:
        try:
            with copies.held("a", lambda: 1, fetch) as path:
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


def test_a_copy_of_a_deleted_object_leaves_with_its_last_user(tmp_path) -> None:
    fake = Fake(tmp_path, 100, a=10)
    with fake.held("a") as path:
        fake.copies.drop("a")
        assert path.exists()
    assert not path.exists()
    with fake.held("a"):
        pass
    fake.copies.drop("a")
    assert fake.fetched == ["a", "a"] and list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def s3():
    with running() as server:
        server.make_bucket("service")
        yield server


@pytest.mark.slow
def test_files_live_in_s3(tmp_path, s3, monkeypatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    first, second, other = (
        open_objects(f"s3://service/{where}", tmp_path / name, 1 << 30)
        for name, where in (("a", "here"), ("b", "here"), ("c", "there"))
    )
    assert first.place == second.place != other.place
    data = os.urandom(20 << 20)  # in parts
    with (tmp_path / "upload").open("w+b") as file:
        file.write(data)
        name = first.put("job", "audio", file)
    with second.held("job", name) as path:
        assert path.read_bytes() == data
    small = second.put("job", "plan", b"words")
    assert first.read("job", small) == b"words" and second.jobs() == {"job"}
    assert other.jobs() == set()
    first.delete_all("job")
    with pytest.raises(FileNotFoundError):
        second.read("job", small)
    with pytest.raises(UsageError, match="blobs_url: s3://nowhere/here") as caught:
        open_objects("s3://nowhere/here", tmp_path / "d", 1 << 30)
    assert "secret-of-the-test" not in str(caught.value)


def test_storage_that_refuses_is_no_missing_file(tmp_path, monkeypatch) -> None:
    files = objects_in(tmp_path / "bucket", tmp_path / "own")

    def denied(key: str) -> bytes:
        raise StorageError("no", code="storage_denied")

    monkeypatch.setattr(files.objects, "read", denied)
    with pytest.raises(StorageError):
        files.read("a", "plan-1")
