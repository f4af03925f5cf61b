"""torch's OpenMP runtime, made visible to the kernels.

Two runtimes in one process keep two teams of threads that wait for each other's cores. So the kernels are
linked with none, and resolve their symbols from the one that torch has loaded. Knows Linux's list of
mappings; elsewhere there is no such runtime to be found, and the kernels are built for one thread.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch  # noqa: F401  loads its OpenMP runtime

_NAMES = ("libgomp", "libomp", "libiomp")
_MAPS = Path("/proc/self/maps")


def runtimes() -> list[Path]:
    """The OpenMP runtimes that this process has loaded, by the files that are mapped."""
    if not _MAPS.exists():
        return []
    paths = {line.split(maxsplit=5)[5].strip() for line in _MAPS.read_text().splitlines()
             if line.count("/")}  # fmt: skip
    return sorted(Path(p) for p in paths if Path(p).name.startswith(_NAMES))


def share() -> Path | None:
    """Makes the symbols of the loaded runtime visible to libraries that are loaded later; returns its file,
    None where there is none with GNU's interface (which LLVM's runtime offers too)."""
    for path in runtimes():
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL | os.RTLD_NOLOAD | os.RTLD_NOW)
        if hasattr(library, "GOMP_parallel") and hasattr(library, "omp_get_thread_num"):
            return path
    return None
