"""What is published: a source distribution, and a wheel that is built from it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.test_architecture import ALLOWED, ROOT

pytest.importorskip("hatchling", reason="needs `scripts/setup test`")

pytestmark = pytest.mark.nightly


def build(target: str, source: Path, folder: Path) -> Path:
    """Build `source` into `folder` without an environment of its own. Returns the file."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree without weights, which take ten seconds to compress."""
    tree = tmp_path_factory.mktemp("tree") / "forescribe"
    left_out = shutil.ignore_patterns(
        ".git", ".venv", ".uv", ".editor", "__pycache__", ".*_cache", "*.safetensors"
    )
    shutil.copytree(ROOT, tree, symlinks=True, ignore=left_out)
    (tree / ".venv").mkdir()
    (tree / ".venv" / "pyvenv.cfg").touch()
    (tree / ".editor" / "forescribe").mkdir(parents=True)
    for part in ALLOWED.keys() - {"forescribe"}:  # as scripts/setup dev makes it
        (tree / ".editor" / "forescribe" / part).symlink_to(f"../../{part}")
    return tree


@pytest.fixture(scope="module")
def unpacked(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    # Not `tarfile`: 3.11.2, Debian 12's Python, lacks the filter that 3.12 warns without.
    subprocess.run(["tar", "-xzf", build("sdist", tree, folder), "-C", folder], check=True)
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    return source


def published(root: Path) -> set[str]:
    """The files of the parts and the bundled models, named as the wheel names them."""
    found = set()
    for part in (*ALLOWED, "bundled", "kernels/src"):
        for path in (root / part).rglob("*"):
            name = path.relative_to(root).as_posix()
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
                found.add(name if part == "forescribe" else f"forescribe/{name}")
    return found


def test_a_wheel_from_the_source_distribution_holds_every_part(
    tree: Path, unpacked: Path, tmp_path: Path
) -> None:
    names = set(zipfile.ZipFile(build("wheel", unpacked, tmp_path)).namelist())
    modules = {name for name in names if name.startswith("forescribe/")}
    wanted = published(tree)
    assert {f"forescribe/{part}/__init__.py" for part in ALLOWED if part != "forescribe"} < wanted
    assert sorted(wanted - modules) == []
    assert {name.split("/")[0] for name in names} == {"forescribe", "forescribe-0.1.0.dist-info"}


def test_the_source_distribution_holds_what_the_tests_and_scripts_need(unpacked: Path) -> None:
    for name in ("tests/conftest.py", "scripts/setup", "samples/memo.flac", "constraints.txt"):
        assert (unpacked / name).is_file(), name
    for name in (".venv", "kernels/build", ".editor"):
        assert not (unpacked / name).exists(), name


def test_no_folder_is_a_link() -> None:
    """hatchling, as `os.walk` with `followlinks`, visits a folder once, under one of its names."""
    folders = [*(ROOT / part for part in ALLOWED), ROOT / "bundled", ROOT / "kernels"]
    found = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    assert not [path for path in found if path.is_symlink() and path.is_dir()]
