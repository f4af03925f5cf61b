"""The folders of the models that ship with the package: `demo` and `text`, each with its `-draft`.

Knows where they are, nothing else; `bundled/README.md` describes them.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["FOLDER", "names", "path"]

# Next to `speculative/`, both in a checkout and in a wheel.
FOLDER = Path(__file__).resolve().parents[2] / "bundled"


def names() -> list[str]:
    """The bundled models, sorted."""
    return sorted(config.parent.name for config in FOLDER.glob("*/config.json"))


def path(name: str) -> Path:
    """The folder of a bundled model; an unknown name is refused with the known ones."""
    if name not in names():
        raise ValueError(f"no bundled model {name!r}; known: {', '.join(names())}")
    return FOLDER / name
