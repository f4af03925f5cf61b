"""The service knows no tensors: whatever needs one is asr's."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2] / "api"


def test_no_file_of_the_service_imports_what_makes_tensors() -> None:
    sources = sorted(ROOT.rglob("*.py"))
    assert len(sources) > 15
    for path in sources:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & {"torch", "numpy"}, path
