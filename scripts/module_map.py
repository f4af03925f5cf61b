"""Which modules the package has and what each imports, read from the sources.

`tests/test_architecture.py` holds the rules about imports with it, `check_types.py` names the files for mypy.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("forescribe", "api", "diarize", "asr", "text", "speculative")
"""Top-level folders of the package, each above those that it may import."""


def sources(part: str) -> list[Path]:
    """The Python files of a part."""
    return sorted((ROOT / part).rglob("*.py"))


def dotted(path: Path) -> str:
    """The full name of a file's module: `asr/decode/judge.py` is `forescribe.asr.decode.judge`."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] in PARTS and parts[0] != "forescribe":
        parts.insert(0, "forescribe")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def statements(path: Path, *, lazy: bool = True) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """The import statements of a file; `lazy` as for `imports`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = ast.walk(tree) if lazy else _at_import(tree)
    return tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


def imports(path: Path, known: set[str], *, lazy: bool = True) -> Iterator[str]:
    """Full names of what a file imports: a module of `known` where it is one, else as written.

    `lazy` includes imports inside functions and those for the type checker only.
    """
    here = dotted(path).split(".")
    package = here if path.name == "__init__.py" else here[:-1]
    for node in statements(path, lazy=lazy):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{module}.{alias.name}"
                yield name if name in known else module


def _at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when the module is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _at_import(node)


def graph(parts: tuple[str, ...] = PARTS, *, lazy: bool = True) -> dict[str, set[str]]:
    """For each module of the parts, the modules of the parts that it imports."""
    files = {dotted(path): path for part in parts for path in sources(part)}
    known = set(files)
    return {
        name: {other for other in imports(path, known, lazy=lazy) if other in known} - {name}
        for name, path in files.items()
    }


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, sorted (strongly connected components, Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(edges[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(edges):
        if name not in index:
            visit(name)
    return sorted(found)
