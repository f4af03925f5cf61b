"""Where the kernels' sources are, what identifies them, and where a compiled library may lie.

Knows paths and hashes; loads and compiles nothing. Imports the standard library alone, as the build of the
wheel loads this file without the package (`kernels/wheel_hook.py`).
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path

# Next to `speculative/`, both in a checkout and in a wheel.
FOLDER = Path(__file__).resolve().parents[2] / "kernels"
SOURCES = FOLDER / "src"


def source_files() -> list[Path]:
    """The C++ sources and headers, sorted."""
    return sorted(p for p in SOURCES.iterdir() if p.suffix in (".h", ".cpp"))


def source_hash() -> str:
    """Identifies the sources: 16 hexadecimal digits over all names and contents."""
    digest = hashlib.sha256()
    for path in source_files():
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()[:16]


def library_name() -> str:
    """The file name of the library for these sources on this platform."""
    machine = platform.machine().lower() or "unknown"
    return f"forescribe-{source_hash()}-{sys.platform}-{machine}.so"


def candidates() -> list[Path]:
    """Where the library may lie, in order: beside the sources, then in the user's cache, if there is one."""
    folders = [FOLDER / "build", user_cache()]
    return [folder / library_name() for folder in folders if folder is not None]


def user_cache() -> Path | None:
    """The user's folder of compiled kernels: below `XDG_CACHE_HOME`, which counts if it is absolute, or
    `~/.cache`. None for a user without a home."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".cache"
        except RuntimeError:  # neither HOME nor an entry in the list of users
            return None
    return base / "forescribe" / "kernels" if base.is_absolute() else None


def package_of(path: Path) -> Path | None:
    """The folder of this package if a library lies in it, None if it lies elsewhere."""
    return FOLDER.parent if path.is_relative_to(FOLDER) else None
