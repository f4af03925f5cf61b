"""The walkthrough runs from top to bottom, and its results are of today."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made  # dataclasses look for their module
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    return module(ROOT / "scripts" / "run_notebook.py")


@pytest.fixture(scope="module")
def notebook(runner: ModuleType) -> Any:
    return runner.read()


def test_the_notebook_runs_from_top_to_bottom() -> None:
    command = [sys.executable, ROOT / "scripts" / "run_notebook.py", "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]


def test_its_results_are_of_today(runner: ModuleType, notebook: Any) -> None:
    if any(cell.get("outputs") for cell in notebook.cells):
        made_from = notebook.metadata.get(runner.MADE_FROM)
        assert made_from == runner.fingerprint(notebook), "run scripts/notebook, and commit it"


def test_its_results_can_be_shown(runner: ModuleType, notebook: Any) -> None:
    text = runner.NOTEBOOK.read_text(encoding="utf-8")
    nbformat.validate(notebook)
    assert runner.faults(notebook, len(text.encode())) == []
    assert '"ename"' not in text, "a cell failed"
    for place in (str(ROOT), tempfile.gettempdir(), str(Path.home())):
        assert f"{place}/" not in text, "it names a folder of the machine that ran it"


# The pictures
