"""A library is complete and ours before it is executed; crashes happen in processes of their own."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forescribe.speculative.errors import LoadError
from forescribe.speculative.native import library, library_file
from forescribe.speculative.native.library_file import (
    SCRATCH,
    damaged,
    hash_file,
    install,
    make_folder,
    untrusted,
)

compiled = pytest.mark.skipif(library.missing() is not None, reason=str(library.missing()))
root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")

NOBODY = 65534


def put(folder: Path, content: bytes = b"a library") -> Path:
    """A file in its place, with the hash of its content."""
    make_folder(folder, 0o700)
    path = folder / library_file.library_name()
    made = folder / "made"
    made.write_bytes(content)
    install(made, path, lambda copy: None)
    made.unlink()
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a user whose folders others cannot write."""
    tmp_path.chmod(0o755)
    return tmp_path / "cache" / "kernels"


# -- content --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: os.truncate(path, path.stat().st_size // 2),
        lambda path: os.truncate(path, 0),
        lambda path: path.write_bytes(b"A" + path.read_bytes()[1:]),
        lambda path: hash_file(path).unlink(),
        lambda path: hash_file(path).write_text("\n"),
        lambda path: hash_file(path).write_bytes(b"\xff\xfe"),
    ],
)
def test_what_is_not_complete_is_refused(folder: Path, harm: Callable[[Path], object]) -> None:
    path = put(folder)
    assert damaged(path) is None and untrusted(path) is None
    harm(path)
    assert damaged(path) is not None
    with pytest.raises(LoadError, match=r"is not loaded: .*kernel_build --force"):
        library.Library(path)


def test_the_hash_can_be_checked_by_hand(folder: Path) -> None:
    path = put(folder)
    assert hash_file(path).read_text() == (
        f"{hashlib.sha256(b'a library').hexdigest()}  {path.name}\n"
    )


@compiled
def test_a_cut_off_library_ends_no_process_and_the_next_place_is_tried(tmp_path: Path) -> None:
    """It ended with SIGBUS, or with an error although there was another library."""
    good = library.load().path
    tmp_path.chmod(0o755)
    places = []
    for share in (0.5, 0.9, 0.0, 1.0):
        folder = tmp_path / str(share)
        make_folder(folder, 0o700)
        install(good, folder / good.name, lambda copy: None)
        places.append(folder / good.name)
        os.truncate(places[-1], int(share * good.stat().st_size))
    code = (
        "import logging, sys; from pathlib import Path\n"
        "from forescribe.speculative.native import library, library_file\n"
        "logging.basicConfig()\n"
        "*cut, whole = map(Path, sys.argv[1:])\n"
        "for each in cut:\n"
        "    for places in ([each], [each, whole]):\n"
        "        library_file.candidates = lambda: places\n"
        "        found = library.find()\n"
        "        print(type(found).__name__ if len(places) == 1 else found.path == whole)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, *map(str, places)], capture_output=True, text=True
    )
    assert run.returncode == 0, (run.returncode, run.stderr)
    assert run.stdout.split() == ["LoadError", "True"] * 3
    assert all(f"{cut} is not loaded: its content" in run.stderr for cut in places[:-1])


# -- owners ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["file", "folder", "parent"])
@pytest.mark.parametrize("how", ["everybody", "a group", "another user"])
def test_what_somebody_else_could_write_is_not_executed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, which: str, how: str
) -> None:
    if how != "everybody" and os.geteuid() != 0:
        pytest.skip("gives files to other users")
    path = put(folder)
    target = {"file": path, "folder": folder, "parent": folder.parent}[which]
    monkeypatch.setattr(ctypes, "CDLL", lambda *args, **more: pytest.fail("it was executed"))
    monkeypatch.setattr(library_file, "share", lambda: None)
    if how == "everybody":
        target.chmod(target.stat().st_mode | 0o002)
    elif how == "a group":
        os.chown(target, -1, NOBODY)
        target.chmod(target.stat().st_mode | 0o020)
    else:
        os.chown(target, NOBODY, -1)
    words = {"another user": f"belongs to the user {NOBODY}"}.get(how, "can be written by")
    with pytest.raises(LoadError, match=f"{target} {words}"):
        library.Library(path)


@root
def test_a_link_of_another_user_is_not_followed(folder: Path, tmp_path: Path) -> None:
    path = put(folder)
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert untrusted(link / path.name) is None
    os.chown(link, NOBODY, -1, follow_symlinks=False)
    assert untrusted(link / path.name) == f"{link} belongs to the user {NOBODY}"
    other = tmp_path / "other"
    other.symlink_to(link)  # ours, and leads through theirs
    assert untrusted(other / path.name) == f"{link} belongs to the user {NOBODY}"


@root
def test_a_package_of_another_owner_may_hold_the_library(tmp_path: Path) -> None:
    """As it is in an environment that an administrator has installed. Its code runs, too."""
    package = tmp_path / "forescribe"
    path = put(package / "kernels" / "build")
    for each in (package, package / "kernels", path.parent, path):
        os.chown(each, 1234, 1234)
    assert untrusted(path) is not None
    assert untrusted(path, package) is None
    path.chmod(0o775)
    assert untrusted(path, package) == f"{path} can be written by the group 1234"
    package.chmod(0o775)  # its code can be written by the same people
    assert untrusted(path, package) is None
    path.parent.chmod(0o777)
    assert untrusted(path, package) == f"{path.parent} can be written by everybody"


def test_what_is_not_there_is_not_ours(tmp_path: Path) -> None:
    assert "its owner is not known" in str(untrusted(tmp_path / "none"))


# -- places ---------------------------------------------------------------------------------------------


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert [p.parent for p in library_file.candidates()] == [library_file.FOLDER / "build"]


@root
def test_the_kernels_are_looked_for_without_a_home() -> None:
    """A user of a container, whom the list of users does not have."""
    code = (
        "import os, pwd\n"
        "from forescribe.speculative.native import library_file\n"
        "os.setuid(54321)\n"
        "print(len(library_file.candidates()))"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME")}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert (run.returncode, run.stdout.strip()) == (0, "1"), run.stderr


@pytest.mark.parametrize("value", ["", "cache", "./cache"])
def test_a_relative_cache_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str
) -> None:
    """It would be another folder wherever the command runs: beside recordings from somebody else."""
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert library_file.user_cache() == tmp_path / ".cache" / "forescribe" / "kernels"
    monkeypatch.setenv("HOME", "home")
    assert library_file.user_cache() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert library_file.user_cache() == tmp_path / "x" / "forescribe" / "kernels"


def test_folders_are_private_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_folder(tmp_path / "a" / "b", 0o700)
        path = put(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    for each in (tmp_path / "a", tmp_path / "a" / "b"):
        assert each.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o022 == hash_file(path).stat().st_mode & 0o022 == 0


# -- installing -----------------------------------------------------------------------------------------


def test_a_library_that_fails_its_check_replaces_nothing(folder: Path, tmp_path: Path) -> None:
    path = put(folder)
    made = tmp_path / "made"
    made.write_bytes(b"worse")

    def check(copy: Path) -> None:
        assert copy.read_bytes() == b"worse" and copy.parent.parent == folder
        raise OSError("it cannot be mapped")

    with pytest.raises(OSError, match="mapped"):
        install(made, path, check)
    assert path.read_bytes() == b"a library" and damaged(path) is None
    assert not list(folder.glob(f"{SCRATCH}*"))


def test_a_reader_between_the_two_renames_finds_a_whole_library(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(folder)
    made = tmp_path / "made"
    made.write_bytes(b"a newer library")
    seen = []
    replace = Path.replace

    def watched(self: Path, target: Path) -> Path:
        result = replace(self, target)
        seen.append((path.read_bytes(), damaged(path)))
        return result

    monkeypatch.setattr(Path, "replace", watched)
    install(made, path, lambda copy: None)
    assert seen == [(b"a library", None), (b"a newer library", None)]


def test_a_new_library_is_on_the_disk_before_it_has_its_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    monkeypatch.setattr(library_file, "_synced", lambda path: events.append(f"sync {path.suffix}"))
    replace = Path.replace

    def named(self: Path, target: Path) -> Path:
        events.append(f"name {target.suffix}")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", named)
    put(folder)
    assert events == ["sync .so", "sync .sha256", "name .sha256", "name .so", "sync "]


def test_copies_of_the_library_need_their_hash(folder: Path) -> None:
    path = put(folder)
    other = folder.parent / "other"
    make_folder(other, 0o700)
    shutil.copy(path, other)
    assert damaged(other / path.name) is not None
