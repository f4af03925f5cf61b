"""The sizes of the project beside those of the last release: what a change added, and what it took away.

    python scripts/sizes.py             # a table; needs `scripts/setup`
    python scripts/sizes.py --record    # writes docs/development/sizes.json; when a release is made

Product are the Python files of the package. Lines are all lines, comments and docstrings too; words are those
of README and docs/. An option counts once for each declaration, however many commands share it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import module_map

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "development" / "sizes.json"
MOST = {"product, lines": 55_000}
"""What may not be passed: who adds a capability removes something."""


def sizes() -> dict[str, int]:
    files = tracked()
    product = [name for name in files if _below(name, module_map.PARTS)]
    python = [name for name in files if name.endswith(".py")]
    return {
        "product, lines": lines(name for name in product if name.endswith(".py")),
        "product, files": sum(name.endswith(".py") for name in product),
        "tests, lines": lines(name for name in python if _below(name, ("tests",))),
        "benchmarks and training, lines": lines(
            name for name in python if _below(name, ("benchmarks", "training"))
        ),
        "JS, HTML, CSS, lines": lines(
            name for name in product if name.endswith((".js", ".html", ".css"))
        ),
        "docs, words": sum(
            len((ROOT / name).read_text(encoding="utf-8").split())
            for name in files
            if name == "README.md" or (_below(name, ("docs",)) and name.endswith(".md"))
        ),
        "options": len(options()),
        "settings": settings(),
    }


def tracked() -> list[str]:
    """Files of the commit; in a tree without history, all that is not an environment or a cache."""
    if (ROOT / ".git").exists():
        run = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return [name for name in run.stdout.split("\0") if name and (ROOT / name).is_file()]
    parts = [path for path in ROOT.iterdir() if not path.name.startswith(".")]
    found = [path for part in parts for path in (part, *part.rglob("*")) if path.is_file()]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def _below(name: str, folders: Iterable[str]) -> bool:
    return name.split("/")[0] in folders


def lines(names: Iterable[str]) -> int:
    return sum((ROOT / name).read_bytes().count(b"\n") for name in names)


def options() -> set[tuple[str, str]]:
    """Name and help of every option of every command."""
    from typer.main import get_command

    from forescribe.cli.main import app

    return {
        (parameter.opts[0], str(getattr(parameter, "help", "")))
        for command in _commands(get_command(app))
        for parameter in command.params
        if parameter.param_type_name == "option"
    }


def _commands(command: Any) -> Iterator[Any]:
    children = getattr(command, "commands", None)
    if children is None:
        yield command
        return
    for child in children.values():
        yield from _commands(child)


def settings() -> int:
    from forescribe.api.settings import Settings

    return len(Settings.model_fields)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the sizes of a release")
    arguments = parser.parse_args()
    now = sizes()
    if arguments.record:
        RECORD.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    last = json.loads(RECORD.read_text(encoding="utf-8"))
    print(f"{'':32s}{'now':>9s}{'last release':>14s}{'change':>9s}")
    for name, count in now.items():
        print(f"{name:32s}{count:9,d}{last[name]:14,d}{count - last[name]:+9,d}")
    if above := [
        f"{name}: {now[name]:,d} of {most:,d}" for name, most in MOST.items() if now[name] > most
    ]:
        sys.exit("too large: " + ", ".join(above))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
