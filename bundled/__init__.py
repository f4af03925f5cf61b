"""The demo models that travel with the package: `demo` and `text`, each a target with its `-draft`.

Knows where they lie, nothing else; see README.md beside this file for what they can do.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["names", "path"]

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The bundled models, sorted."""
    return sorted(config.parent.name for config in _FOLDER.glob("*/config.json"))


def path(name: str) -> Path:
    """The folder of a bundled model; an unknown name is refused with the known ones."""
    if name not in names():
        raise ValueError(f"no bundled model {name!r}; known: {', '.join(names())}")
    return _FOLDER / name
