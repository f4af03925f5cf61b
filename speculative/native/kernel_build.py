"""Compiles the kernels: `python -m forescribe.speculative.native.kernel_build`.

Knows compilers and their flags. Needs a C++17 compiler (`CXX`, c++, g++ or clang++); writes beside the
sources, or into the user's cache where that folder is read-only. Exits with 1, and says why, where it cannot.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..errors import LoadError
from . import kernel_files, openmp

COMMON = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-Wno-psabi",
          # Sums are fused where the code says so, never where the optimiser likes: results must not
          # depend on which copy of a loop computes a row.
          "-ffp-contract=off")  # fmt: skip
X86: dict[str, tuple[str, ...]] = {
    "generic": (),
    "avx2": ("-mavx2", "-mfma"),
    "avx512": ("-mavx512f", "-mavx2", "-mfma", "-mprefer-vector-width=512"),
    "avx512vnni": ("-mavx512vnni", "-mavx512f", "-mavx2", "-mfma", "-mprefer-vector-width=512"),
    "avx512bf16": (
        "-mavx512bf16",
        "-mavx512vnni",
        "-mavx512f",
        "-mavx2",
        "-mfma",
        "-mprefer-vector-width=512",
    ),
}
OTHER: dict[str, tuple[str, ...]] = {"generic": ()}
HOW = "python -m forescribe.speculative.native.kernel_build"


def compiler() -> list[str]:
    """The command of the C++ compiler. Raises LoadError where none is found."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    for name in names:
        command = shlex.split(name)
        if shutil.which(command[0]):
            return command
    raise LoadError(f"no C++ compiler found ({', '.join(names)}); on Debian: apt-get install g++")


def instruction_sets() -> dict[str, tuple[str, ...]]:
    """The instruction sets for this machine's family of processors, with their flags."""
    return X86 if platform.machine().lower() in ("x86_64", "amd64") else OTHER


def refused(command: Sequence[str], flags: Sequence[str]) -> bool:
    """Whether a compiler, of before 2020 for one, does not know an instruction set's flags."""
    empty = [*command, *flags, "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(empty, capture_output=True, check=False).returncode != 0


def threads_flags(command: Sequence[str]) -> tuple[str, ...]:
    """`-fopenmp` where the compiler's code calls the interface of torch's runtime, else nothing: clang's
    calls LLVM's runtime, and torch's wheels for Linux bring GNU's."""
    clang = "clang" in _run([*command, "--version"]).lower()
    shared = openmp.share()
    return ("-fopenmp",) if shared is not None and not clang else ()


def build(folder: Path | None = None, flags: Sequence[str] = ()) -> Path:
    """Compiles the library into `folder` (default: the first of `kernel_files.candidates` that can be
    written) and returns its path. Raises LoadError with the compiler's first error."""
    command = compiler()
    target = (folder or writable_folder()) / kernel_files.library_name()
    target.parent.mkdir(parents=True, exist_ok=True)
    sets = {name: isa for name, isa in instruction_sets().items() if not refused(command, isa)}
    common = [*COMMON, *threads_flags(command), *flags,
              f'-DFS_SOURCE_HASH="{kernel_files.source_hash()}"']  # fmt: skip
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        jobs = [
            ("numeric.cpp", [f"-DFS_ISA={name}", *isa], Path(scratch, f"{name}.o"))
            for name, isa in sets.items()
        ]
        has = [f"-DFS_HAS_{name.upper()}" for name in sets]
        jobs.append(("dispatch.cpp", has, Path(scratch, "dispatch.o")))

        def compile_one(job: tuple[str, list[str], Path]) -> None:
            source, extra, output = job
            path = str(kernel_files.SOURCES / source)
            _run([*command, *common, *extra, "-c", path, "-o", str(output)])

        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            list(pool.map(compile_one, jobs))
        made = Path(scratch, "library.so")
        # Not -fopenmp: the symbols come from torch's runtime (see `openmp`).
        _run([*command, "-shared", *flags, *(str(output) for *_, output in jobs), "-o", str(made)])
        made.replace(
            target
        )  # at once: a process that loads meanwhile sees the old file or the new one
    return target


def writable_folder() -> Path:
    """The first folder for libraries that can be written. Raises LoadError where none can."""
    for path in kernel_files.candidates():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path.parent):
                return path.parent
        except OSError:
            continue
    folders = ", ".join(str(p.parent) for p in kernel_files.candidates())
    raise LoadError(f"none of the folders for compiled kernels can be written: {folders}")


def _run(command: Sequence[str]) -> str:
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        lines = [line for line in run.stderr.splitlines() if "error" in line] or ["no message"]
        raise LoadError(f"{command[0]} failed: {lines[0]}")
    return run.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=HOW, description=__doc__.splitlines()[0])
    parser.add_argument("--force", action="store_true", help="compile even if the library is there")
    options = parser.parse_args(arguments)
    from .library import Library

    try:
        found = next((p for p in kernel_files.candidates() if p.exists()), None)
        path = found if found and not options.force else build()
        line = Library(path).describe()
    except LoadError as error:
        sys.stderr.write(f"no native kernels: {error}\n")
        return 1
    sys.stdout.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
