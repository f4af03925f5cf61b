"""Finding and checking the compiled kernels, and the one OpenMP runtime that they share with torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forescribe.speculative.errors import LoadError
from forescribe.speculative.native import kernel_build, library, library_file
from forescribe.speculative.native.library import advice
from forescribe.speculative.native.library_file import CompilerError


@pytest.mark.native
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="lists no mappings")
def test_one_openmp_runtime_is_loaded_and_the_kernels_use_it() -> None:
    """In a process of its own, where no other package has loaded one."""
    code = (
        "import torch\n"
        "from forescribe.speculative.native import library, library_file\n"
        "before = library_file.runtimes()\n"
        "torch.ones(1000, 1000).sum()\n"
        "kernels = library.load()\n"
        "assert kernels.threads and kernels.openmp in before, before\n"
        "print(len(before), library_file.runtimes() == before)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["1", "True"]


@pytest.mark.native
def test_the_best_instruction_set_is_taken_unless_another_is_chosen() -> None:
    kernels = library.Library(library.load().path)
    usable = kernels.instruction_sets()
    assert usable[-1] == "generic" and kernels.instruction_set == usable[0]
    try:
        for name in usable:
            kernels.choose(name)
            assert kernels.instruction_set == name
        with pytest.raises(ValueError, match="sse2 is not one of"):
            kernels.choose("sse2")
    finally:
        kernels.choose(None)


@pytest.mark.native
def test_a_library_of_other_sources_is_refused(monkeypatch) -> None:
    path = library.load().path
    monkeypatch.setattr(library_file, "source_hash", lambda: "0" * 16)
    with pytest.raises(LoadError, match="of other sources"):
        library.Library(path)


def test_what_is_no_library_is_refused(tmp_path) -> None:
    (tmp_path / "x.so").write_text("no library")
    with pytest.raises(LoadError, match="cannot be loaded"):
        library.Library(tmp_path / "x.so")


def test_the_hash_names_all_sources(monkeypatch, tmp_path) -> None:
    before = library_file.source_hash()
    for path in library_file.SOURCES.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(library_file, "SOURCES", tmp_path)
    assert library_file.source_hash() == before
    with (tmp_path / "vector.h").open("a") as file:
        file.write("\n")
    assert library_file.source_hash() != before


def test_without_a_compiler_the_command_says_so(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(library_file, "FOLDER", tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert kernel_build.main([]) == 1
    assert "no C++ compiler found (no-such-compiler)" in capsys.readouterr().err


def test_a_compilers_error_is_reported(monkeypatch, tmp_path) -> None:
    (tmp_path / "cc").write_text("#!/bin/sh\necho 'x.cpp:1: error: no' >&2\nexit 1\n")
    (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "cc"))
    with pytest.raises(CompilerError, match=r"cc failed: x\.cpp:1: error: no"):
        kernel_build.build(tmp_path / "made" / "x.so")
    assert not list((tmp_path / "made").glob("*"))


def test_without_kernels_a_command_says_so_in_one_line(monkeypatch) -> None:
    monkeypatch.setattr(library, "missing", lambda: f"they are not compiled; {library.BUILD}")
    said = advice("lean", asked=None, device="cpu")
    assert said is not None and "several times faster" in said and "native.kernel_build" in said
    assert advice("native", asked=None, device="cpu") is None
    assert advice("lean", asked="lean", device="cpu") is None
    assert advice("lean", asked=None, device="cuda") is None
    monkeypatch.setattr(library, "missing", lambda: None)  # the model has no native form
    assert advice("modules", asked=None, device="cpu") is None


@pytest.mark.native
def test_a_library_that_is_there_is_not_compiled_again(monkeypatch, capsys) -> None:
    monkeypatch.setattr(kernel_build, "build", pytest.fail)
    assert kernel_build.main([]) == 0
    assert library.load().describe() in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.native
def test_the_command_compiles_a_library_that_runs(tmp_path) -> None:
    made = tmp_path / "made.so"
    kernel_build.build(made, ("-O0",))
    assert library.Library(made).instruction_sets() == library.load().instruction_sets()
