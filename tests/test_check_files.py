"""scripts/check_files.py and the pre-commit configuration: which faults they find."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def check_files() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "check_files", ROOT / "scripts" / "check_files.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "data", "fault"),
    [
        ("a.py", b"x = 1 \n", "whitespace"),
        ("a.py", b"x = 1", "no newline"),
        ("a.py", b"<" * 7 + b" HEAD\n", "merge conflict"),
        ("a.txt", b"-----BEGIN RSA " + b"PRIVATE KEY-----\n", "private key"),
        ("a.json", b'{"a": }\n', "syntax"),
        ("a.toml", b"a = \n", "syntax|whitespace"),
        ("a.yaml", b"a: [1\n", "syntax"),
        ("a.bin", b"\xff" * 500_001, "500001 bytes"),
    ],
)
def test_a_fault_is_found(check_files: ModuleType, name: str, data: bytes, fault: str) -> None:
    assert any(re.search(fault, found) for found in check_files.faults(name, data))


def test_a_symbolic_link_is_a_fault(
    check_files: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link.json").symlink_to("nowhere.json")
    assert check_files.main([str(tmp_path / "link.json")]) == 1
    assert "a symbolic link" in capsys.readouterr().out


def test_the_repository_passes(
    check_files: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    assert check_files.main([]) == 0, capsys.readouterr().out
