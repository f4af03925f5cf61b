"""Tests that need what a machine may lack are skipped there, with the reason: a run without it is green."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_architecture import ROOT

pytestmark = pytest.mark.nightly

CONFTEST = """
from forescribe.speculative.native import library
from tests.conftest import pytest_collection_modifyitems

library.missing = lambda: {reason!r}
"""
TESTS = """
import pytest

@pytest.mark.native
def test_kernels(): pass

@pytest.mark.parametrize("engine", [pytest.param("native", marks=pytest.mark.native), "lean"])
def test_engines(engine): pass
"""


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("no kernels: no compiler", ["1 passed, 2 skipped", "no kernels: no compiler"]),
        (None, ["3 passed"]),
    ],
)
def test_the_native_marker_skips_where_the_kernels_cannot_be_used(
    tmp_path: Path, reason: str | None, told: list[str]
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.format(reason=reason))
    (tmp_path / "test_kernels.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-c", os.devnull, "-p", "no:cacheprovider"]
        + ["-o", "markers=native", "--rootdir", str(tmp_path), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(part in done.stdout for part in told), done.stdout
