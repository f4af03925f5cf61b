"""The map of the modules, read from the sources: folders, imports between parts, import cycles.

    python scripts/module_map.py             # write docs/development/map.md
    python scripts/module_map.py --check     # exit status 1 where it is out of date

`tests/test_architecture.py` uses the same functions, so that the page and the rules cannot differ.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "development" / "map.md"
PARTS = ("forescribe", "api", "diarize", "asr", "text", "speculative")
"""Top-level folders of the package, each above those that it may import."""


def sources(part: str) -> list[Path]:
    """The Python files of a part."""
    return sorted((ROOT / part).rglob("*.py"))


def dotted(path: Path) -> str:
    """The full name of a file's module: `asr/decode/rules.py` is `forescribe.asr.decode.rules`."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] in PARTS and parts[0] != "forescribe":
        parts.insert(0, "forescribe")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, known: set[str], *, lazy: bool = True) -> Iterator[str]:
    """Full names of what a file imports: a module of `known` where it is one, else as written.

    `lazy` includes imports inside functions and those for the type checker only.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    here = dotted(path).split(".")
    package = here if path.name == "__init__.py" else here[:-1]
    for node in ast.walk(tree) if lazy else _at_import(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
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


def summary(path: Path) -> str:
    """The first line of a module's docstring."""
    lines = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()
    return lines[0].rstrip() if lines else ""


def longest(part: str) -> dict[type[ast.AST], tuple[int, str]]:
    """The longest function and the longest class of a part: lines and name."""
    found: dict[type[ast.AST], tuple[int, str]] = {}
    for path in sources(part):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                kind: type[ast.AST] = (
                    ast.ClassDef if isinstance(node, ast.ClassDef) else ast.FunctionDef
                )
                size = (node.end_lineno or 0) - node.lineno + 1
                where = f"`{path.relative_to(ROOT).as_posix()}:{node.name}`"
                found[kind] = max(found.get(kind, (0, "")), (size, where))
    return found


def page() -> str:
    edges = graph()
    lines = [
        "# Module map",
        "",
        "Written by `scripts/map` from the sources; do not edit it. Each part may import those below it.",
        "",
        "| part | imports | modules | longest function | longest class |",
        "|---|---|---|---|---|",
    ]
    for part in PARTS:
        files = sources(part)
        own = {dotted(path) for path in files}
        used = {_part(other) for name in own for other in edges[name]} - {part}
        sizes = longest(part)
        cells = [
            f"`{part}/`",
            ", ".join(f"`{p}`" for p in PARTS if p in used) or "none",
            str(len(files)),
            *(f"{n} {name}" for n, name in (sizes[ast.FunctionDef], sizes[ast.ClassDef])),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"Import cycles: {len(cycles(edges)) or 'none'}.", ""]
    for part in PARTS:
        folders = sorted({path.parent for path in sources(part)})
        for folder in folders:
            files = sorted(folder.glob("*.py"))
            lines += [f"## `{folder.relative_to(ROOT).as_posix()}/`", ""]
            init = folder / "__init__.py"
            if init.exists() and summary(init):
                lines += [summary(init), ""]
            lines += [f"- `{f.stem}`: {summary(f)}" for f in files if f.name != "__init__.py"]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _part(name: str) -> str:
    first = name.split(".")[1] if "." in name else ""
    return first if first in PARTS else "forescribe"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    text = page()
    if not parser.parse_args().check:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit(f"{PAGE.relative_to(ROOT)} is out of date: run scripts/map")


if __name__ == "__main__":
    main()
