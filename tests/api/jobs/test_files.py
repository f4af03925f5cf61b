"""The files of jobs, in a folder and in a bucket: whole or absent, no name twice, copies bounded."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from forescribe.api.jobs import files as storage
from forescribe.api.jobs.files import Copies, DiskFiles, ObjectFiles
from forescribe.api.jobs.service import open_objects
from forescribe.asr.errors import OutputError, StorageError, UsageError
from forescribe.asr.storage.locations import Location
from forescribe.asr.storage.stores import Stores
from tests.api.conftest import until
from tests.asr.storage.emulator import running

ROOT = Path(__file__).parents[3]


def objects_in(bucket: Path, folder: Path, cache_bytes: int = 1 << 30) -> ObjectFiles:
    bucket.mkdir(exist_ok=True)
    return ObjectFiles(Stores().at(Location.parse(f"file://{bucket}")), folder, cache_bytes)


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
    assert files.local("a", first).read_bytes() == b"sound"
    files.delete("a", first)
    files.delete("a", first)
    for read in (files.read, files.local):
        with pytest.raises(FileNotFoundError):
            read("a", first)
    assert files.read("a", second) == b"sound" and files.jobs() == {"a", "b"}
    files.delete_all("a")
    files.delete_all("a")
    assert files.jobs() == {"b"} and files.read("b", other) == b"sound"
    files.delete("b", other)
    assert files.jobs() == set()
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "identity"]


def test_a_disk_that_is_gone_is_noticed(files, tmp_path) -> None:
    def stored() -> list[Path]:
        return [path for path in tmp_path.rglob("*") if path.is_file()]

    before = stored()
    files.probe()
    assert stored() == before
    shutil.rmtree(tmp_path / "own")
    with pytest.raises(OutputError, match="job store"):
        files.probe()


def test_a_disk_without_room_for_a_byte_is_full(files, monkeypatch) -> None:
    full_disk = partial(open, "/dev/full", "wb")
    monkeypatch.setattr(storage, "TemporaryFile", lambda dir, **given: full_disk(**given))
    with pytest.raises(OutputError) as full:
        files.probe()
    assert full.value.code == "storage_full"


def test_a_whole_file_is_stored_wherever_it_stands(files, tmp_path) -> None:
    data = os.urandom(3 << 20)
    with (tmp_path / "upload").open("w+b") as file:
        file.write(data)  # not flushed, and at its end
        name = files.put("a", "audio", file)
    assert files.local("a", name).read_bytes() == data
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


@pytest.mark.parametrize("meanwhile", ["deleted", "added"])
def test_a_folder_leaves_whole_whatever_others_do_in_it(tmp_path, monkeypatch, meanwhile) -> None:
    """A correction that came too late deletes its own file, and then the audio stayed."""
    files, unlink, met = DiskFiles(tmp_path), os.unlink, list[str]()
    names = [files.put("a", "x", b"1") for _ in range(3)]

    def meeting(path, **at) -> None:
        met.append(path)
        if meanwhile == "deleted" and len(met) == 1:
            unlink(tmp_path / "a" / path)
        if meanwhile == "added" and len(met) == len(names):
            (tmp_path / "a" / "late").write_bytes(b"2")
        unlink(path, **at)

    monkeypatch.setattr(os, "unlink", meeting)
    files.delete_all("a")
    assert len(met) >= len(names) and files.jobs() == set()


def test_a_file_begins_although_its_folder_was_just_removed(tmp_path, monkeypatch) -> None:
    """The job's last file has left, and the folder with it."""
    files, mkdir, made = DiskFiles(tmp_path), Path.mkdir, list[Path]()

    def meeting(path: Path) -> None:
        mkdir(path)
        made.append(path)
        if len(made) == 1:
            path.rmdir()

    monkeypatch.setattr(Path, "mkdir", meeting)
    assert files.read("a", files.put("a", "x", b"1")) == b"1" and len(made) == 2


def test_a_file_that_leaves_with_its_job_is_no_fault_of_the_disk(tmp_path, monkeypatch) -> None:
    """The row is deleted before the files, and tells the one who asked. A correction was refused as by a full
    disk."""
    files, copy = DiskFiles(tmp_path), storage._copy

    def meeting(*given) -> None:
        copy(*given)
        files.delete_all("a")

    monkeypatch.setattr(storage, "_copy", meeting)
    name = files.put("a", "x", b"1")
    assert files.jobs() == set()
    files.delete("a", name)
    shutil.rmtree(tmp_path)
    with pytest.raises(OutputError, match="job store"):
        files.put("a", "x", b"1")


class Objects:
    """Copies of objects of 40 bytes, or of other sizes; `fetched` lists them in order."""

    def __init__(self, folder: Path, max_bytes: int = 100, **sizes: int) -> None:
        self.sizes, self.fetched = sizes, list[str]()
        self.copies = Copies(folder, max_bytes)

    def use(self, name: str) -> Path:
        def fetch(path: Path) -> None:
            self.fetched.append(name)
            path.write_bytes(b"x" * self.sizes.get(name, 40))

        return self.copies.copy(name, fetch)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_copies_make_room_for_others_the_longest_unused_first(tmp_path) -> None:
    objects = Objects(tmp_path, huge=101)
    for name in "abac":
        assert objects.use(name).stat().st_size == 40
    assert objects.fetched == ["a", "b", "c"] and names(tmp_path) == {"a", "c"}
    with objects.use("a").open("rb") as file:
        assert objects.use("huge").stat().st_size == 101  # alone, if it does not fit at all
        assert names(tmp_path) == {"huge"} and file.read() == b"x" * 40  # who has it keeps it
    objects.copies.trim(0.0)
    assert names(tmp_path) == set()


def test_copies_are_kept_as_long_as_somebody_asks_for_them(tmp_path) -> None:
    """Also for those of other processes, and the time of their bytes stays: browsers go by it."""
    other, own = Objects(tmp_path), Objects(tmp_path)
    half = tmp_path / "new-1"
    half.write_bytes(b"died")
    for path in (other.use("a"), other.use("b"), half):
        os.utime(path, (1.0, 2.0))
    assert own.use("a").stat().st_mtime == 2.0 and own.fetched == []
    own.copies.trim()
    assert names(tmp_path) == {"a"}
    own.copies.drop("a")
    own.copies.drop("a")
    assert names(tmp_path) == set()


def test_trimming_goes_on_where_another_process_removes_the_same_copies(
    tmp_path, monkeypatch
) -> None:
    files = objects_in(tmp_path / "bucket", tmp_path / "own")
    for _ in range(2):
        files.local("a", files.put("a", "audio", b"x"))
    remove = Path.unlink

    def after_another(path: Path, missing_ok: bool = False) -> None:
        remove(path)
        remove(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", after_another)
    files.trim(0.0)
    assert names(tmp_path / "own" / "copies") == set()


def test_all_who_wait_for_a_copy_have_the_end_of_one_fetch(tmp_path) -> None:
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
            ended.append(copies.copy("a", fetch).read_text())
        except OSError:
            ended.append("failed")

    for fetched, end in enumerate(("failed", "x"), 1):  # a failed one is not the end of the next
        ended.clear()
        go.clear()
        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        until(lambda n=fetched: count[0] == n)
        time.sleep(0.1)  # the others wait by now
        go.set()
        for thread in threads:
            thread.join()
        assert ended == [end] * 4 and count[0] == fetched
    assert copies.copy("a", fetch) == tmp_path / "a" and count[0] == 2


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
    assert second.local("job", name).read_bytes() == data
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
