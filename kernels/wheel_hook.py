"""Puts the compiled kernels into the wheel, which then is one for this platform.

Run by hatchling when it builds a wheel (pyproject.toml). Where no C++ compiler is, or compiling fails, the
wheel has the sources alone and is one for every platform, and says so. The environment variable
FORESCRIBE_COMPILE decides otherwise: `never` compiles nothing, and with `require` the build fails where the
kernels would be missing.

The library contains all instruction sets and links to glibc alone. The wheel's tag names the oldest glibc
that has its symbols, but none below 2.17, where the tags begin.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "FORESCRIBE_COMPILE"
OLDEST = (2, 17)
HERE = "forescribe/kernels/build"  # in the wheel, as `library_file.library_path`


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # scripts/setup compiles beside the sources
            return
        wanted = os.environ.get(VARIABLE, "auto")
        if wanted == "never":
            self.app.display_info(f"a wheel without native kernels: {VARIABLE} is never")
            return
        if sys.platform != "linux":
            problem: str | None = f"the library is for Linux, not for {sys.platform}"
        else:
            problem = self._add(build_data)
        if problem is None:
            return
        if wanted == "require":
            self.app.abort(f"no native kernels, and {VARIABLE} is require: {problem}")
        self.app.display_warning(f"a wheel without native kernels: {problem}")

    def _add(self, build_data: dict[str, Any]) -> str | None:
        """Adds the library to the wheel; returns why it could not."""
        native = Path(self.root, "speculative", "native")
        files = module(native / "library_file.py")
        self.scratch = tempfile.TemporaryDirectory(prefix="forescribe-wheel-")
        try:
            command = files.find_compiler()
            if not files.calls_gnu_openmp(command):
                return "the library needs GNU's OpenMP, which torch brings: build it with g++"
            runtime, library = openmp_runtime(command), files.library_path()
            if not usable(files, library, runtime):
                self.app.display_waiting("compiling the native kernels, about 150 s of one core")
                library = Path(self.scratch.name, library.name)
                files.compile_library(library, openmp=True)
                complete(files, library, runtime)
            tag = platform_tag(library)
        except (files.CompilerError, OSError) as error:
            return str(error)
        build_data["force_include"][str(library)] = f"{HERE}/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"
        return None

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "scratch"):
            self.scratch.cleanup()


def module(path: Path) -> ModuleType:
    """A module of the package that needs nothing else of it: torch is not there when a wheel is built."""
    spec = importlib.util.spec_from_file_location(f"forescribe_build_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # dataclasses look themselves up
    spec.loader.exec_module(made)
    return made


def openmp_runtime(command: list[str]) -> Path:
    """The compiler's OpenMP runtime, to try the library with. Raises OSError."""
    name = "libgomp.so.1"
    run = subprocess.run(
        [*command, f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    ctypes.CDLL(run.stdout.strip())
    return Path(run.stdout.strip())


def complete(files: ModuleType, path: Path, runtime: Path) -> None:
    """Raises CompilerError where a library cannot be loaded, lacks an instruction set or threads."""
    loaded = files.try_library(path, runtime)
    lacking = set(files.instruction_sets()) - set(loaded.isas)
    if lacking:
        raise files.CompilerError(
            f"the compiler does not know {', '.join(sorted(lacking))}: use g++ 11 or newer"
        )
    if not loaded.openmp:
        raise files.CompilerError(f"{path} was compiled without threads")


def usable(files: ModuleType, path: Path, runtime: Path) -> bool:
    """Whether a library that `scripts/setup` compiled from these sources can be taken."""
    try:
        complete(files, path, runtime)
    except files.CompilerError:
        return False
    return True


def platform_tag(path: Path) -> str:
    """The platform tag of a library: manylinux, by the newest version of glibc that it asks for, where it
    links to nothing but glibc; `linux` with another C library, or where `readelf` cannot be run."""
    machine = platform.machine().lower()
    try:
        run = subprocess.run(
            ["readelf", "--dynamic", "--version-info", "--wide", str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return f"linux_{machine}"
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", run.stdout))
    versions = [(int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", run.stdout)]
    if not versions or any(not re.match(r"(libc|libm|ld-linux.*)\.so\.", n) for n in needed):
        return f"linux_{machine}"
    major, minor = max(OLDEST, *versions)
    return f"manylinux_{major}_{minor}_{machine}"
