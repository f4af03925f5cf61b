"""The messages that the page explains are those of the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import get_args

import pytest

from forescribe.asr.errors import Code
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
QUOTED = re.compile(r"^\*\*`(?P<message>.+)`\*\*", re.M)
GAP = "…"
PACKAGES = ("forescribe", "asr", "diarize", "api", "speculative", "text")


@cache
def nodes() -> list[ast.AST]:
    """Calls and texts of the sources."""
    trees = (
        ast.parse(path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    )
    kinds = (ast.JoinedStr, ast.Constant, ast.Call)
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)]


@cache
def texts() -> list[str]:
    """Every text of the sources; what is put into it at run time is a gap."""
    scripts = [ROOT / "scripts" / "setup", *(ROOT / "scripts" / "lib").glob("*.sh")]
    found = [path.read_text(encoding="utf-8") for path in scripts]
    for node in nodes():
        if isinstance(node, ast.JoinedStr):
            found.append("".join(map(_part, node.values)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def _part(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else GAP


def said(message: str) -> bool:
    """Whether a text of the sources has the message's words, in order."""
    parts = [re.escape(part.strip()) for part in message.split(GAP) if part.strip(" :;,.()'")]
    pattern = re.compile(".*".join(parts), re.S)
    return any(pattern.search(text) for text in texts())


def messages() -> list[str]:
    return [m["message"].removeprefix("setup: ") for m in QUOTED.finditer(PAGE)]


@pytest.mark.parametrize("message", messages())
def test_a_message_is_one_that_the_code_says(message: str) -> None:
    assert said(message)


def test_messages_that_nobody_says_are_seen() -> None:
    assert len(messages()) > 30
    assert not said("the … is on fire")
    assert not said("no such file; … check its permissions … the queue is full")


def test_every_code_and_every_note_is_on_the_page() -> None:
    assert [code for code in get_args(Code) if f"`{code}`" not in PAGE] == []
    assert sorted(note for note in notes() if f"`{note}`" not in PAGE) == []


def notes() -> set[str]:
    """First arguments of `Notice(...)` that are written out."""
    found = set()
    for node in nodes():
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Notice":
            first = node.args[0]
            if isinstance(first, ast.Constant):
                found.add(str(first.value))
    assert "truncated_audio" in found
    return found
