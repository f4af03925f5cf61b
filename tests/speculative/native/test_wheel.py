"""The wheel holds the compiled kernels where there is a compiler when it is built, and says so where not.

Built by hatchling from the tree, with the library of this machine: compiling takes minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from forescribe.speculative.native import library, library_file
from tests.test_architecture import ROOT

pytest.importorskip("hatchling", reason="needs `scripts/setup test`")
pytestmark = pytest.mark.nightly
compiled = pytest.mark.skipif(library.missing() is not None, reason=str(library.missing()))

VARIABLE = "FORESCRIBE_COMPILE"
LIBRARY = f"forescribe/kernels/build/{library_file.library_path().name}"


def build(folder: Path, **environment: str) -> tuple[Path | None, str]:
    """The wheel, if one was built, and what was said."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    made = next(folder.glob("*.whl"), None)
    assert (done.returncode == 0) == (made is not None), done.stdout + done.stderr
    return made, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel with kernels. Needs no compiler: those of `scripts/setup` are taken."""
    kernels = library.load()
    folder = tmp_path_factory.mktemp("wheel")
    compiler = folder / "g++"
    compiler.write_text(
        "#!/bin/sh\n"
        f'case "$1" in --version) echo "g++ 12";; -print-file-name=*) echo "{kernels.openmp}";;'
        " *) exit 1;; esac\n"
    )
    compiler.chmod(0o755)
    made, said = build(folder, CXX=str(compiler), **{VARIABLE: "require"})
    assert made is not None, said
    return made


@compiled
def test_its_tag_is_of_the_platform(wheel: Path) -> None:
    """With glibc 2.28, the oldest that torch's wheels run with, it can be installed."""
    *_, python, abi, platform = wheel.stem.split("-")
    assert (python, abi) == ("py3", "none") and platform.startswith("manylinux_2_")
    assert int(platform.split("_")[2]) <= 28
    described = zipfile.ZipFile(wheel).read("forescribe-0.1.0.dist-info/WHEEL").decode()
    assert "Root-Is-Purelib: false" in described and f"Tag: py3-none-{platform}" in described


@compiled
def test_it_is_used_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with zipfile.ZipFile(wheel) as archive:
        assert LIBRARY in archive.namelist()
        archive.extractall(tmp_path / "installed")
    found = tmp_path / "installed" / LIBRARY
    code = (
        "from forescribe.speculative.native.library import load; print(load().path, load().threads)"
    )
    run = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": str(tmp_path / "installed"), "PATH": "/nowhere", "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.stdout.split() == [str(found), "True"], run.stderr


@pytest.mark.parametrize(
    ("compiler", "problem"),
    [("no-such-compiler", "no C++ compiler found (no-such-compiler)"), ("false", "false failed")],
)
def test_without_a_compiler_it_is_pure_and_says_so(
    tmp_path: Path, compiler: str, problem: str
) -> None:
    made, said = build(tmp_path, CXX=compiler, **{VARIABLE: "auto"})
    assert made is not None and made.name.endswith("-py3-none-any.whl")
    assert "a wheel without native kernels: " in said and problem in said
    names = zipfile.ZipFile(made).namelist()
    assert "forescribe/kernels/src/dispatch.cpp" in names
    assert not [name for name in names if name.startswith("forescribe/kernels/build")]


def test_it_can_be_required(tmp_path: Path) -> None:
    made, said = build(tmp_path, CXX="no-such-compiler", **{VARIABLE: "require"})
    assert made is None and "no native kernels, and FORESCRIBE_COMPILE is require" in said
