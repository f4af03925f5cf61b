"""A test that nobody can run is a failure where everything was installed (`tests/conftest.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = """
import pytest

def test_needs_a_package(): pytest.importorskip("no_such_package")

@pytest.mark.skipif(True, reason="no CUDA device")
def test_needs_a_card(): ...

def test_runs(): ...
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("given", "counts"),
    [({}, "1 passed, 2 skipped"), ({"TESTS_REQUIRE_ALL": "1"}, "1 failed, 1 passed, 1 skipped")],
)
def test_a_skip_for_what_can_be_installed_fails_where_all_is_required(
    given: dict[str, str], counts: str, tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    root = Path(__file__).parents[1]
    environment = {k: v for k, v in os.environ.items() if k != "TESTS_REQUIRE_ALL"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    run = subprocess.run(
        command,
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(root), **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert counts in run.stdout, run.stdout + run.stderr
