"""The library of kernels as a file: its place, named by the hash of its sources, the way from
sources to one library, and torch's OpenMP runtime.

Two OpenMP runtimes in one process keep two teams of threads that wait for each other's cores. So the kernels
are linked with none, and resolve their symbols from the one that torch has loaded (`share`), which is found
in Linux's list of mappings; elsewhere they are built for one thread.

Imports the standard library alone, as the build of the wheel loads this file without the package
(`kernels/wheel_hook.py`).
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

# Next to `speculative/`, both in a checkout and in a wheel.
FOLDER = Path(__file__).resolve().parents[2] / "kernels"
SOURCES = FOLDER / "src"

_NAMES = ("libgomp", "libomp", "libiomp")
_MAPS = Path("/proc/self/maps")

COMMON = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-Wno-psabi",
          # Sums are fused where the code says so, never where the optimiser likes: results must not
          # depend on which copy of a loop computes a row.
          "-ffp-contract=off")  # fmt: skip
# With -O2 these and "generic" are as fast, and take 0.7 of the time to compile; encoders by AVX2 would be 2 %
# slower.
AVX512 = ("-O2", "-mavx512f", "-mavx2", "-mfma", "-mprefer-vector-width=512")
X86: dict[str, tuple[str, ...]] = {
    "generic": ("-O2",),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avxvnni": ("-mavxvnni", "-mavx2", "-mfma", "-mf16c"),
    "avx512": AVX512,
    "avx512vnni": ("-mavx512vnni", *AVX512),
    "avx512bf16": ("-mavx512bf16", "-mavx512vnni", *AVX512),
}
OTHER: dict[str, tuple[str, ...]] = {"generic": ()}
CHECK_S = 60
"""Seconds that a new library may take to load."""


def library_path() -> Path:
    """Where the library for these sources and this platform lies."""
    machine = platform.machine().lower() or "unknown"
    return FOLDER / "build" / f"forescribe-{source_hash()}-{sys.platform}-{machine}.so"


def source_hash() -> str:
    """Identifies the sources: 16 hexadecimal digits over all names and contents."""
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]):
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
    found = set()
    for line in _MAPS.read_text().splitlines():
        _, slash, path = line.partition("/")
        if Path(path).name.startswith(_NAMES):
            found.add(Path(slash + path.strip()))
    return sorted(found)


class CompilerError(RuntimeError):
    """There is no compiler, it failed, or what it made cannot be loaded."""


@dataclass(frozen=True)
class Loaded:
    """What a library says of itself."""

    source_hash: str
    isas: tuple[str, ...]  # that were compiled, best first
    openmp: bool


def find_compiler() -> list[str]:
    """The command of the C++ compiler. Raises CompilerError where none is found."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    for name in names:
        command = shlex.split(name)
        if command and shutil.which(command[0]):
            return command
    raise CompilerError(
        f"no C++ compiler found ({', '.join(names)}); on Debian: apt-get install g++"
    )


def instruction_sets() -> dict[str, tuple[str, ...]]:
    """The instruction sets for this machine's family of processors, with their flags."""
    return X86 if platform.machine().lower() in ("x86_64", "amd64") else OTHER


def refused(command: Sequence[str], flags: Sequence[str]) -> bool:
    """Whether a compiler, of before 2020 for one, does not know an instruction set's flags."""
    empty = [*command, *flags, "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(empty, capture_output=True, check=False).returncode != 0


def calls_gnu_openmp(command: Sequence[str]) -> bool:
    """Whether the compiler's parallel code calls the interface of GNU's runtime, which torch's wheels for
    Linux bring; clang's calls LLVM's."""
    return "clang" not in _run([*command, "--version"]).lower()


def compile_library(output: Path, *, openmp: bool, flags: Sequence[str] = ()) -> None:
    """Compiles the kernels to `output`, for every instruction set that the compiler knows.
    `openmp`: with threads; their runtime's symbols stay undefined. Raises CompilerError with the compiler's
    first error."""
    command = find_compiler()
    sets = {name: isa for name, isa in instruction_sets().items() if not refused(command, isa)}
    common = [*COMMON, *flags, f'-DFS_SOURCE_HASH="{source_hash()}"']
    if openmp:
        common.append("-fopenmp")
    try:
        folder = tempfile.TemporaryDirectory(prefix="forescribe-kernels-")
    except OSError as error:
        text = (
            f"no temporary folder ({error.strerror}): free some space, or name another with TMPDIR"
        )
        raise CompilerError(text) from error
    with folder as scratch:
        jobs = [
            ("numeric.cpp", [f"-DFS_ISA={name}", *isa], Path(scratch, f"{name}.o"))
            for name, isa in sets.items()
        ]
        has = [f"-DFS_HAS_{name.upper()}" for name in sets]
        jobs.append(("dispatch.cpp", has, Path(scratch, "dispatch.o")))

        commands = [
            [*command, *common, *extra, "-c", str(SOURCES / source), "-o", str(made)]
            for source, extra, made in jobs
        ]
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            list(pool.map(_run, commands))
        # Not -fopenmp: the symbols come from torch's runtime (`share`). The C++ library is not
        # used, so it is not asked for either.
        needed = ("-Wl,--as-needed",) if sys.platform == "linux" else ()
        objects = [str(made) for *_, made in jobs]
        _run([*command, "-shared", *needed, *flags, *objects, "-o", str(output)])


_LOAD = """
import ctypes, json, sys
path, runtime = sys.argv[1:]
if runtime:
    ctypes.CDLL(runtime, mode=ctypes.RTLD_GLOBAL)
library = ctypes.CDLL(path)
for name in ("fs_source_hash", "fs_isas"):
    getattr(library, name).restype = ctypes.c_char_p
if library.fs_choose_isa(None):
    sys.exit("it has no instruction set of this machine")
print(json.dumps([library.fs_source_hash().decode(), library.fs_isas().decode().split(),
                  bool(library.fs_openmp())]))
"""


def try_library(path: Path, runtime: Path | None) -> Loaded:
    """Loads a library in a process of its own, with the symbols of the OpenMP `runtime`: a damaged file ends
    that process, not this one. Raises CompilerError where it cannot be used."""
    command = [sys.executable, "-I", "-c", _LOAD, str(path), str(runtime or "")]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CHECK_S)
    except subprocess.TimeoutExpired:
        raise CompilerError(f"{path} was not loaded within {CHECK_S} s") from None
    if run.returncode:
        lines = run.stderr.splitlines() or [f"the process ended with {run.returncode}"]
        raise CompilerError(f"{path} cannot be loaded ({lines[-1]})")
    source_hash, isas, openmp = json.loads(run.stdout)
    return Loaded(source_hash, tuple(isas), openmp)


def _run(command: Sequence[str]) -> str:
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        lines = [line for line in run.stderr.splitlines() if "error" in line] or ["no message"]
        raise CompilerError(f"{command[0]} failed: {lines[0]}")
    return run.stdout
