"""scripts/draw_terminal.py: the picture is what the commands printed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def draw_terminal() -> ModuleType:
    path = ROOT / "scripts" / "draw_terminal.py"
    spec = importlib.util.spec_from_file_location("draw_terminal", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def lines(svg: str) -> list[str]:
    found = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(text.itertext()) for text in found]


def test_the_picture_holds_commands_and_what_they_print(draw_terminal, tmp_path) -> None:
    command = draw_terminal.Command("echo '1 < 2 & 3'; echo error >&2", "a remark")
    svg = draw_terminal.drawn([(command, draw_terminal.printed(command, tmp_path))])
    assert lines(svg) == [f"$ {command.line}     # a remark", "1 < 2 & 3", "error"]
    long = ["word " * 40]
    assert all(
        len(line) <= draw_terminal.COLUMNS for line in lines(draw_terminal.drawn([(command, long)]))
    )


def test_a_command_that_fails_draws_nothing(draw_terminal, tmp_path) -> None:
    with pytest.raises(SystemExit, match="status 3\nwhy"):
        draw_terminal.printed(draw_terminal.Command("echo why; exit 3"), tmp_path)


def test_the_picture_in_the_documentation_shows_these_commands(draw_terminal) -> None:
    shown = [line for line in lines(draw_terminal.PICTURE.read_text()) if line.startswith("$ ")]
    assert [line.split("     # ")[0] for line in shown] == [
        f"$ {command.line}" for command in draw_terminal.COMMANDS
    ]
