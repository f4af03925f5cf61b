"""Compiles the kernels: `python -m forescribe.speculative.native.kernel_build`.

Needs a C++17 compiler (`CXX`, c++, g++ or clang++); writes beside the sources, or into the user's cache where
that folder cannot be used. Exits with 1, and says why, where it cannot. Two of these never compile at a time:
the second waits, or leaves (`--background`).

A command that lacks the kernels (`advice`) starts it for the next one. Compiling takes 140 s of one core (g++
12, all instruction sets): longer than most commands, so none waits. A process of its own, with the lowest
priority, goes on when the command has ended. Knows processes and folders; nothing of models.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from ..errors import LoadError
from . import compiler, library_file
from .compiler import CompilerError
from .library import Library, find, missing

HOW = "python -m forescribe.speculative.native.kernel_build"
NICENESS = 19
"""Of a process in the background: the lowest priority."""

VARIABLE = "FORESCRIBE_COMPILE"
"""Environment variable: "never" starts no compiler, here and when a wheel is built."""
SLOWER = "the native kernels, several times faster on CPUs, are not used"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=HOW, description=__doc__.splitlines()[0])
    parser.add_argument("--force", action="store_true", help="compile even if the library is there")
    parser.add_argument(
        "--background",
        action="store_true",
        help="with low priority and without a word; leave where another process compiles",
    )
    options = parser.parse_args(arguments)
    try:
        if options.background:
            in_background()
        else:
            sys.stdout.write(f"{in_foreground(force=options.force).describe()}\n")
    except (LoadError, CompilerError) as error:
        sys.stderr.write(f"no native kernels: {error}\n")
        return 1
    return 0


def advice(used: str, *, asked: str | None, device: str) -> str | None:
    """What to tell the user of a command that decodes with the engine `used`, where it is not the native one
    because this machine lacks the kernels; None where another engine was `asked` for, or the `device` is no
    CPU. Where there is a compiler, it is started."""
    if used == "native" or asked not in (None, "auto") or device != "cpu":
        return None
    problem = missing()
    if problem is None:  # the model has no native form
        return None
    if os.environ.get(VARIABLE) == "never":
        return f"{SLOWER}: {problem}"
    try:
        compiler.find_compiler()
        folder = next(usable_folders())
        failed = failure_file(folder)
        if failed.exists():
            reason = failed.read_text(errors="replace").strip()
            return f"{SLOWER}: {reason}. To try again: {HOW} --force"
        with compiling(folder, wait=False) as alone:
            pass
        if alone:
            _start()
    except CompilerError:
        return (
            f"{SLOWER}: there is no C++ compiler here. Install one (Debian, Ubuntu: apt-get install g++), or "
            "forescribe's wheel for this platform, which contains them"
        )
    except (LoadError, OSError) as error:
        return f"{SLOWER}: {error}"
    return (
        f"{SLOWER}: they are being compiled in the background, a few minutes, for the next command"
    )


def in_foreground(*, force: bool) -> Library:
    """The library, compiled unless there is one or where `force` asks for it. Raises LoadError."""
    found = find()
    if isinstance(found, Library) and not force:
        return found
    compiler.find_compiler()
    folder = next(usable_folders())
    with compiling(folder, wait=False) as alone:
        if alone:
            return _built(folder)
    sys.stderr.write("another process is compiling the native kernels; waiting for it\n")
    with compiling(folder, wait=True):
        found = find()
        return found if isinstance(found, Library) and not force else _built(folder)


def in_background() -> None:
    """Compiles with the lowest priority, unless another process does or has, and leaves a note where it
    fails. Raises LoadError."""
    folder = next(usable_folders())
    os.nice(NICENESS)
    with compiling(folder, wait=False) as alone:
        if not alone or isinstance(find(), Library):
            return
        try:
            build()
        except LoadError as error:
            failure_file(folder).write_text(f"{error}\n")
            raise


def build(folder: Path | None = None, flags: Sequence[str] = ()) -> Path:
    """Compiles the library and returns its path: in `folder`, by default the first of
    `library_file.candidates` where it can be written and loaded. Raises LoadError with the compiler's first
    error, or with what is wrong with each folder."""
    try:
        folders = usable_folders() if folder is None else iter([folder])
        first = next(folders)
        runtime = library_file.share()
        threads = runtime is not None and compiler.calls_gnu_openmp(compiler.find_compiler())
        with tempfile.TemporaryDirectory(prefix="forescribe-kernels-") as scratch:
            made = Path(scratch, "library.so")
            compiler.compile_library(
                library_file.SOURCES,
                library_file.source_hash(),
                made,
                openmp=threads,
                flags=flags,
            )
            return _installed(made, chain([first], folders), runtime)
    except (CompilerError, OSError) as error:
        raise LoadError(str(error)) from error


def usable_folders() -> Iterator[Path]:
    """The folders for libraries that can be written, and by nobody else, best first; each is made when it is
    asked for. Raises LoadError where there is none."""
    found, problems = False, []
    for path in library_file.candidates():
        folder = path.parent
        try:
            _make(folder)
            with tempfile.TemporaryFile(dir=folder):
                problem = library_file.untrusted(folder, library_file.package_of(folder))
        except OSError as error:
            problem = str(error)
        if problem is None:
            found = True
            yield folder
        else:
            problems.append(f"{folder} ({problem})")
    if not found:
        raise LoadError(
            f"none of the folders for compiled kernels can be used: {', '.join(problems) or 'none'}"
        )


@contextmanager
def compiling(folder: Path, *, wait: bool) -> Iterator[bool]:
    """While it lasts, no other process compiles into this folder; yields False, where one does and this one
    does not `wait`."""
    with (folder / ".compiling").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        for left in folder.glob(f"{library_file.SCRATCH}*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        yield True


def failure_file(folder: Path) -> Path:
    """Where a process in the background leaves why it failed, so that the next one does not try again."""
    return folder / f"{library_file.library_name()}.failed"


def _built(folder: Path) -> Library:
    library = Library(build())
    failure_file(folder).unlink(missing_ok=True)
    return library


def _installed(made: Path, folders: Iterable[Path], runtime: Path | None) -> Path:
    """The library in the first folder from which it can be loaded: files of some cannot be executed."""
    problems = []
    for folder in folders:
        target = folder / library_file.library_name()
        try:
            _make(folder)
            library_file.install(made, target, lambda copy: compiler.try_library(copy, runtime))
            return target
        except (CompilerError, OSError) as error:
            problems.append(str(error))
    raise LoadError("; ".join(problems))


def _make(folder: Path) -> None:
    shared = library_file.package_of(folder) is not None
    library_file.make_folder(folder, library_file.OPEN if shared else library_file.PRIVATE)


def _start() -> None:
    process = subprocess.Popen(
        # -P, and another folder: nothing beside the user's recordings is imported.
        [sys.executable, "-P", "-m", __name__, "--background"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # an interrupt in the terminal is for the command
    )
    # No zombie in a process that lives long.
    threading.Thread(target=process.wait, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
