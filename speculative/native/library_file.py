"""The library of kernels as a file: its place, named by the hash of its sources, and torch's OpenMP runtime.

Two OpenMP runtimes in one process keep two teams of threads that wait for each other's cores. So the kernels
are linked with none, and resolve their symbols from the one that torch has loaded (`share`), which is found
in Linux's list of mappings; elsewhere they are built for one thread.

Imports the standard library alone, as the build of the wheel loads this file without the package
(`kernels/wheel_hook.py`).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import sys
from pathlib import Path

# Next to `speculative/`, both in a checkout and in a wheel.
FOLDER = Path(__file__).resolve().parents[2] / "kernels"
SOURCES = FOLDER / "src"

_NAMES = ("libgomp", "libomp", "libiomp")
_MAPS = Path("/proc/self/maps")


def library_path() -> Path:
    """Where the library for these sources and this platform lies."""
    machine = platform.machine().lower() or "unknown"
    return FOLDER / "build" / f"forescribe-{source_hash()}-{sys.platform}-{machine}.so"


def source_hash() -> str:
    """Identifies the sources: 16 hexadecimal digits over all names and contents."""
    digest = hashlib.sha256()
    for path in sorted(p for p in SOURCES.iterdir() if p.suffix in (".h", ".cpp")):
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()[:16]


def share() -> Path | None:
    """Makes the symbols of the loaded runtime visible to libraries that are loaded later; returns its file,
    None where there is none with GNU's interface (which LLVM's runtime offers too)."""
    for path in runtimes():
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL | os.RTLD_NOLOAD | os.RTLD_NOW)
        if hasattr(library, "GOMP_parallel") and hasattr(library, "omp_get_thread_num"):
            return path
    return None


def runtimes() -> list[Path]:
    """The OpenMP runtimes that this process has loaded, by the files that are mapped."""
    if not _MAPS.exists():
        return []
    paths = {line.split(maxsplit=5)[5].strip() for line in _MAPS.read_text().splitlines()
             if line.count("/")}  # fmt: skip
    return sorted(Path(p) for p in paths if Path(p).name.startswith(_NAMES))
