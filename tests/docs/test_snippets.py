"""Python and TOML in the documentation: what needs no server is run, the rest is read."""

from __future__ import annotations

import ast
import importlib
import tomllib
from typing import Any

import pytest

from forescribe.api.settings import Settings
from tests.docs.pages import ROOT, Block, blocks, output_after

RUN = {"README.md", "docs/python.md", "docs/development/drafters.md", "docs/exactness.md"}
"""Pages whose Python is run, from top to bottom; on others it is compiled and its imports are tried."""


def python() -> list[Block]:
    return blocks("python", "py")


def imports(tree: ast.Module) -> list[tuple[str, str | None]]:
    """Modules, with the name that is taken from them."""
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.module or "", alias.name) for alias in node.names]
    return found


def missing(block: Block) -> list[str]:
    """What it imports from our packages that is not there."""
    packages = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    wrong = []
    for module, name in imports(ast.parse(block.text)):
        if module.split(".")[0] not in packages:
            continue
        try:
            loaded = importlib.import_module(module)
        except ModuleNotFoundError:
            wrong.append(module)
            continue
        if name is not None and not hasattr(loaded, name):
            wrong.append(f"{module}.{name}")
    return wrong


@pytest.mark.parametrize("block", python(), ids=lambda block: block.name)
def test_what_a_snippet_imports_is_there(block: Block) -> None:
    assert missing(block) == []


@pytest.mark.nightly
@pytest.mark.parametrize("page", sorted(RUN & {b.page for b in python()}))
def test_the_snippets_of_a_page_run(page: str, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    monkeypatch.chdir(tmp_path)  # what they write is not for the repository
    names: dict[str, Any] = {}
    printed = ""
    for block in (b for b in python() if b.page == page):
        exec(compile(block.text, block.name, "exec"), names)
        out = capsys.readouterr().out
        printed += out
        if (shown := output_after(block)) is not None:
            assert out == shown, f"{block.name} prints something else than the page shows"
    assert printed.strip(), "it prints something to see"


@pytest.mark.parametrize("block", blocks("toml"), ids=lambda block: block.name)
def test_settings_in_the_documentation_exist(block: Block) -> None:
    assert set(tomllib.loads(block.text)) <= set(Settings.model_fields) | {"project"}


def test_a_name_that_is_gone_is_seen() -> None:
    text = (
        "from forescribe.asr.decode.transcriber import Transcriber, Gone\n"
        "import forescribe.asr.gone\nimport numpy.none\n"
    )
    assert missing(Block("here", 1, "python", text)) == [
        "forescribe.asr.decode.transcriber.Gone",
        "forescribe.asr.gone",
    ]
