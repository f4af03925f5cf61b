"""Compiling: one at a time, in the background, and into a place from which it can be loaded. The compiler is
a script; what it makes is a copy of the library of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forescribe.speculative.errors import LoadError
from forescribe.speculative.native import compiler, kernel_build, library, library_file
from forescribe.speculative.native.compiler import CompilerError
from forescribe.speculative.native.kernel_build import advice
from forescribe.speculative.native.library_file import damaged, make_folder

compiled = pytest.mark.skipif(library.missing() is not None, reason=str(library.missing()))

MISSING = "the native kernels are not compiled"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two places for libraries, both empty."""
    tmp_path.chmod(0o755)
    found = [tmp_path / name / library_file.library_name() for name in ("one", "two")]
    monkeypatch.setattr(library_file, "candidates", lambda: found)
    monkeypatch.setattr(kernel_build, "missing", lambda: MISSING)
    monkeypatch.delenv(kernel_build.VARIABLE, raising=False)
    return found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each process that is started in the background."""
    found: list[int] = []
    monkeypatch.setattr(kernel_build, "_start", lambda: found.append(1))
    return found


def fake_compiler(folder: Path, library: Path | None = None, *, fails: bool = False) -> Path:
    """A compiler that counts its calls and links a copy of `library`."""
    path = folder / "g++"
    copy = f'cp "{library}" "$out"' if library else 'echo > "$out"'
    path.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> "{folder}/calls"\n'
        '[ "$1" = --version ] && { echo "g++ 12"; exit; }\n'
        + ("echo 'x.cpp:1: error: no' >&2; exit 1\n" if fails else "")
        + 'for a; do [ "$last" = -o ] && out=$a; last=$a; done\n'
        f'case "$*" in *-shared*) {copy};; *-fsyntax-only*) ;; *) : > "$out";; esac\n'
    )
    path.chmod(0o755)
    return path


def links(folder: Path) -> int:
    calls = folder / "calls"
    return calls.read_text().count("-shared") if calls.exists() else 0


@pytest.fixture
def gxx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a compiler that works."""
    found = library.find()
    made = fake_compiler(tmp_path, found.path if isinstance(found, library.Library) else None)
    monkeypatch.setenv("CXX", str(made))
    yield tmp_path


# -- building -------------------------------------------------------------------------------------------


@compiled
def test_a_library_is_installed_where_it_can_be_loaded(
    gxx: Path, places: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of some folders cannot be executed: those of a home that is mounted with noexec."""
    tried, real = [], compiler.try_library

    def try_library(path: Path, runtime: Path | None) -> compiler.Loaded:
        tried.append(path.parent.parent.name)
        if tried == ["one"]:
            raise CompilerError("failed to map segment from shared object")
        return real(path, runtime)

    monkeypatch.setattr(compiler, "try_library", try_library)
    assert kernel_build.build() == places[1]
    assert tried == ["one", "two"] and not places[0].exists() and damaged(places[1]) is None
    assert places[1].parent.stat().st_mode & 0o777 == 0o700
    assert isinstance(library.find(), library.Library)


def test_what_cannot_be_loaded_is_not_installed(
    tmp_path: Path, places: list[Path], monkeypatch
) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path)))
    with pytest.raises(LoadError, match="cannot be loaded"):
        kernel_build.build()
    assert not places[0].exists() and not places[1].exists()


def test_a_library_that_crashes_ends_another_process(tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match=r"none cannot be loaded \(.*none"):
        compiler.try_library(tmp_path / "none", None)


def test_a_folder_of_everybody_is_passed_over(places: list[Path]) -> None:
    make_folder(places[0].parent, 0o777)
    assert next(kernel_build.usable_folders()) == places[1].parent
    places[1].parent.chmod(0o777)
    with pytest.raises(LoadError, match="can be written by everybody"):
        next(kernel_build.usable_folders())


# -- one at a time --------------------------------------------------------------------------------------


def test_two_never_compile_at_a_time(tmp_path: Path) -> None:
    left = tmp_path / ".new-of-a-killed-process"
    left.mkdir()
    with kernel_build.compiling(tmp_path, wait=False) as alone:
        assert alone and not left.exists()
        with kernel_build.compiling(tmp_path, wait=False) as second:
            assert not second
    with kernel_build.compiling(tmp_path, wait=False) as alone:
        assert alone


@compiled
def test_many_commands_compile_once(gxx: Path, places: list[Path]) -> None:
    """Three processes, of which one compiles: one in the background leaves, the other waits."""
    code = (
        "import sys; from pathlib import Path\n"
        "from forescribe.speculative.native import kernel_build, library_file\n"
        "library_file.candidates = lambda: [Path(sys.argv[1])]\n"
        "sys.exit(kernel_build.main(sys.argv[2:]))\n"
    )
    command = [sys.executable, "-c", code, str(places[0])]
    processes = [
        subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for more in ([], ["--background"], [])
    ]
    for process in processes:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert b"native kernels: " in output or not output
    assert links(gxx) == 1 and damaged(places[0]) is None


# -- in the background ----------------------------------------------------------------------------------


def told(used: str = "lean", asked: str | None = "auto", device: str = "cpu") -> str:
    return advice(used, asked=asked, device=device) or ""


def test_a_compiler_is_started_and_the_user_is_told(
    gxx: Path, places: list[Path], started: list[int]
) -> None:
    assert "they are being compiled in the background" in told()
    assert started == [1]
    with kernel_build.compiling(places[0].parent, wait=False):  # by another command
        assert "they are being compiled in the background" in told()
    assert started == [1]


@pytest.mark.parametrize(
    "case", [{"used": "native"}, {"asked": "lean"}, {"asked": "modules"}, {"device": "cuda"}]
)
def test_nothing_is_compiled_for_what_does_not_use_it(
    gxx: Path, places: list[Path], started: list[int], case: dict[str, str]
) -> None:
    assert told(**case) == "" and not started


def test_nothing_is_compiled_for_a_model_without_a_native_form(
    gxx: Path, places: list[Path], started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_build, "missing", lambda: None)
    assert told() == "" and not started


def test_without_a_compiler_the_hint_says_what_to_install(
    places: list[Path], started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "apt-get install g++" in told() and "wheel for this platform" in told()
    assert not started


def test_a_variable_forbids_it(
    gxx: Path, places: list[Path], started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kernel_build.VARIABLE, "never")
    assert told().endswith(MISSING) and not started
    assert not places[0].parent.exists()


def test_what_failed_is_told_and_not_tried_again(
    tmp_path: Path, places: list[Path], started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, fails=True)))
    monkeypatch.setattr(os, "nice", lambda by: None)
    assert kernel_build.main(["--background"]) == 1
    assert "x.cpp:1: error: no. To try again: python -m" in told() and not started


@compiled
def test_a_build_by_hand_forgets_the_failure(
    gxx: Path, places: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(places[0].parent, 0o700)
    note = kernel_build.failure_file(places[0].parent)
    note.write_text("it failed")
    assert kernel_build.main([]) == 0
    assert str(places[0]) in capsys.readouterr().out and not note.exists()
    assert kernel_build.main([]) == 0 and links(gxx) == 1  # it is there
    assert kernel_build.main(["--force"]) == 0 and links(gxx) == 2


def test_the_process_outlives_the_command_and_imports_nothing_of_its_folder(tmp_path: Path) -> None:
    """A script in place of Python writes down how it was called, after the command has ended."""
    said, ended = tmp_path / "said", tmp_path / "ended"
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'for i in $(seq 300); do [ -e "{ended}" ] && break; sleep 0.1; done\n'
        f'echo "$PWD $@" > "{said}.new"\nmv "{said}.new" "{said}"\n'
    )
    python.chmod(0o755)
    code = (
        "import sys; sys.executable = sys.argv[1]\n"
        "from forescribe.speculative.native.kernel_build import _start\n"
        "_start()\n"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(python)], capture_output=True, text=True
    )
    assert (run.returncode, run.stderr) == (0, "") and not said.exists()
    ended.touch()
    until = time.monotonic() + 30
    while not said.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert said.read_text().split() == [
        "/", "-P", "-m", "forescribe.speculative.native.kernel_build", "--background",
    ]  # fmt: skip
