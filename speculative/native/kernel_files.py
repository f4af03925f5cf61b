"""Where the kernels' sources are, what identifies them, and where a compiled library may lie.

Knows paths and hashes; loads and compiles nothing.
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
    """Where the library may lie, in order: beside the sources, then in the user's cache."""
    return [folder / library_name() for folder in (FOLDER / "build", user_cache())]


def user_cache() -> Path:
    """The user's folder of compiled kernels; below `XDG_CACHE_HOME`, or `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "forescribe" / "kernels"
