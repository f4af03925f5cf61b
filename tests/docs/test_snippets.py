"""Python and TOML in the documentation and the notebook: what needs no server is run, the rest is read."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forescribe.api.settings import Settings
from tests.docs.pages import ROOT, Block, blocks, output_after, pages

RUN = {"README.md", "docs/python.md", "docs/development/drafters.md", "docs/exactness.md"}
"""Pages whose Python is run, from top to bottom; on others it is compiled and its imports are tried."""


NOTEBOOK = ROOT / "notebooks" / "walkthrough.ipynb"
NAME = re.compile(r"\bforescribe(?:\.[A-Za-z_]\w*)+")
ENDINGS = ("json", "toml")
OTHERS = {"forescribe.hypothesis": "api"}
"""Groups of entry points and an event, with the part that knows each."""


def python() -> list[Block]:
    return blocks("python", "py")


def cells() -> Iterator[Block]:
    """The code of the notebook, and the modules beside it."""
    for number, cell in enumerate(json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            yield Block(NOTEBOOK.name, number, "python", "".join(cell["source"]))
    for path in sorted(NOTEBOOK.parent.glob("*.py")):
        yield Block(path.name, 1, "python", path.read_text(encoding="utf-8"))


def read() -> list[Path]:
    """What people read or run that names modules of ours, beside the code itself."""
    deployed = [path for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    return [*pages(), NOTEBOOK, *ROOT.glob("Dockerfile*"), ROOT / "compose.yaml", *deployed]


def exists(name: str) -> bool:
    """Whether a dotted name is a module of ours, something in one, or known to a part as it is."""
    if name in OTHERS:
        sources = (ROOT / OTHERS[name]).rglob("*.py")
        return any(f'"{name}"' in path.read_text(encoding="utf-8") for path in sources)
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part, None)
        return found is not None
    return False


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


@pytest.mark.parametrize("block", [*python(), *cells()], ids=lambda block: block.name)
def test_what_a_snippet_imports_is_there(block: Block) -> None:
    assert missing(block) == []


@pytest.mark.parametrize("path", read(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_modules_that_a_page_or_a_deployment_names_are_there(path: Path) -> None:
    named = set(NAME.findall(path.read_text(encoding="utf-8")))
    modules = {name for name in named if not name.endswith(ENDINGS)}
    assert sorted(name for name in modules if not exists(name)) == []


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(RUN & {b.page for b in python()}))
def test_the_snippets_of_a_page_run(page: str, samples, tmp_path, monkeypatch, capsys) -> None:
    """docs/python.md transcribes the memo eight times: it gets the first seconds."""
    shutil.copytree(ROOT / "samples", tmp_path / "samples")
    if page == "docs/python.md":
        shutil.copy(samples / "memo.flac", tmp_path / "samples")
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
    assert not exists("forescribe.asr.decode.gone") and not exists("forescribe.asr.errors.Gone")
    assert exists("forescribe.asr.errors.ForescribeError.__init__")
    text = (
        "from forescribe.asr.decode.transcriber import Transcriber, Gone\n"
        "import forescribe.asr.gone\nimport numpy.none\n"
    )
    assert missing(Block("here", 1, "python", text)) == [
        "forescribe.asr.decode.transcriber.Gone",
        "forescribe.asr.gone",
    ]
