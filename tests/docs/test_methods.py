"""The map of methods shows what was measured: its table and picture are those of `methods.csv`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import methods
from tests.docs.pages import ROOT


def test_the_map_is_up_to_date() -> None:
    command = [sys.executable, "-P", "-m", "benchmarks.methods", "--check"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, ""), found.stdout + found.stderr


def test_prices_follow_from_speeds_and_sources_exist() -> None:
    for figure in methods.read():
        assert (methods.FOLDER / figure.page).is_file()
        program, _, commit = figure.program.partition("@")  # the commit at which it last stood
        module = ROOT / (program.replace(".", "/") + ".py")
        assert module.is_file() != bool(commit) or program.startswith("forescribe ")
        if figure.speed is not None:
            assert figure.price == pytest.approx(figure.tokens / figure.speed)


FIGURE = methods.Figure(1, "a", "x", 4, 2.0, None, None, "exact", "", "", True)


def test_a_method_without_a_row_is_named() -> None:
    with pytest.raises(ValueError, match="no row of the page is of a$"):
        methods.filled("| method | figure here |\n|---|---|\n| b | |\n", [FIGURE])


def test_cells_beside_a_figure_stay_as_they_are() -> None:
    text = "| method | figure here | reported |\n|---|---|---|\n| [a](b.md) of c | | 2 times |\n"
    found = methods.filled(text, [FIGURE]).splitlines()
    assert found[2] == "| [a](b.md) of c | 2.00 of 4 (x) | 2 times |"
