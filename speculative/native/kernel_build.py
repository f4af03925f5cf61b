"""Compiles the kernels: `python -m forescribe.speculative.native.kernel_build`, as scripts/setup does.

Needs a C++17 compiler (`CXX`, c++, g++ or clang++) and takes 150 s of one core (g++ 12, all instruction
sets). Writes beside the sources. Exits with 1, and says why, where it cannot.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..errors import LoadError
from . import library_file
from .library import Library


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--force", action="store_true", help="compile even if the library is there")
    options = parser.parse_args(arguments)
    try:
        path = library_file.library_path()
        if options.force or not path.exists():
            build(path)
        sys.stdout.write(f"{Library(path).describe()}\n")
    except (LoadError, library_file.CompilerError, OSError) as error:
        sys.stderr.write(f"no native kernels: {error}\n")
        return 1
    return 0


def build(path: Path, flags: Sequence[str] = ()) -> None:
    """Compiles the library, which is complete or not there. Raises CompilerError, with the compiler's first
    error or why the library cannot be loaded, and OSError."""
    runtime = library_file.share()
    threads = runtime is not None and library_file.calls_gnu_openmp(library_file.find_compiler())
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as scratch:
        made = Path(scratch, path.name)
        library_file.compile_library(made, openmp=threads, flags=flags)
        library_file.try_library(made, runtime)
        made.replace(path)


if __name__ == "__main__":
    sys.exit(main())
