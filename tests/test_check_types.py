"""scripts/check_types.py: mypy checks imports between the parts, which lie beside the package."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_architecture import ALLOWED, ROOT

pytest.importorskip("mypy", reason="needs `scripts/setup dev`")

pytestmark = pytest.mark.nightly


def write(root: Path, call: str) -> None:
    """A tree with the parts; forescribe.api calls a function of forescribe.asr."""
    for part in (*ALLOWED, "training", "benchmarks"):
        (root / part).mkdir(exist_ok=True)
        (root / part / "__init__.py").touch()
    (root / "asr" / "lengths.py").write_text(
        "def double(length: int) -> int:\n    return 2 * length\n"
    )
    source = f"from forescribe.asr.lengths import double\n\nRESULT: int = {call}\n"
    (root / "api" / "doubled.py").write_text(source)
    (root / "pyproject.toml").write_text("[tool.mypy]\nstrict = true\n")
    (root / "scripts").mkdir(exist_ok=True)
    for name in ("check_types.py", "module_map.py"):
        shutil.copy(ROOT / "scripts" / name, root / "scripts")


def check(root: Path) -> tuple[int, str]:
    command = [sys.executable, str(root / "scripts" / "check_types.py")]
    done = subprocess.run(command, cwd=root.parent, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_a_wrong_argument_across_parts_is_found(tmp_path: Path) -> None:
    write(tmp_path, 'double("two")')
    status, said = check(tmp_path)
    assert status == 1 and 'api/doubled.py:3: error: Argument 1 to "double" has' in said, said
    assert "Found 1 error in 1 file (checked 10 source files)" in said, said
    write(tmp_path, "double(2)")
    assert check(tmp_path) == (0, "Success: no issues found in 10 source files\n")
    write(tmp_path, "double(")
    status, said = check(tmp_path)
    assert status == 2 and "api/doubled.py:4: error: Unexpected EOF" in said, said


def test_an_import_that_no_part_has_is_found(tmp_path: Path) -> None:
    write(tmp_path, "double(2)")
    (tmp_path / "asr" / "lengths.py").unlink()
    status, said = check(tmp_path)
    assert status == 1 and "api/doubled.py:1: error:" in said, said
    assert '"forescribe.asr.lengths"' in said
