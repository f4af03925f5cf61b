"""A library of kernels as a file: where it may lie, whether it is complete and ours, how it is installed.

A cut-off file ends the process that executes it (SIGBUS), and one that somebody else could write is their
code. So a library has the hash of its content beside it, in the format of `sha256sum`, and it and the folders
that lead to it are ours. Its name has the hash of the sources.

Also torch's OpenMP runtime, made visible to the kernels (`share`): two runtimes in one process keep two teams
of threads that wait for each other's cores. So the kernels are linked with none, and resolve their symbols
from the one that torch has loaded, which is found in Linux's list of mappings; elsewhere they are built for
one thread.

Imports the standard library alone, as the build of the wheel loads this file without the package
(`kernels/wheel_hook.py`).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

# Next to `speculative/`, both in a checkout and in a wheel.
FOLDER = Path(__file__).resolve().parents[2] / "kernels"
SOURCES = FOLDER / "src"

SCRATCH = ".new-"
"""How the names of folders begin in which a library is installed."""
OPEN, PRIVATE = 0o755, 0o700
"""Modes of folders: beside the sources, and in a user's cache."""

_NAMES = ("libgomp", "libomp", "libiomp")
_MAPS = Path("/proc/self/maps")


def candidates() -> list[Path]:
    """Where the library may lie, in order: beside the sources, then in the user's cache, if there is one."""
    folders = [FOLDER / "build", user_cache()]
    return [folder / library_name() for folder in folders if folder is not None]


def library_name() -> str:
    """The file name of the library for these sources on this platform."""
    machine = platform.machine().lower() or "unknown"
    return f"forescribe-{source_hash()}-{sys.platform}-{machine}.so"


def source_hash() -> str:
    """Identifies the sources: 16 hexadecimal digits over all names and contents."""
    digest = hashlib.sha256()
    for path in source_files():
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()[:16]


def source_files() -> list[Path]:
    """The C++ sources and headers, sorted."""
    return sorted(p for p in SOURCES.iterdir() if p.suffix in (".h", ".cpp"))


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


def damaged(path: Path) -> str | None:
    """Why a library is not the one that was installed: cut off, changed or without its hash. None where it
    is. Read with calls, not mapped: this costs 20 ms, and a file that is cut off meanwhile is short."""
    try:
        lines = hash_file(path).read_text().splitlines()
        expected = {line.split()[0] for line in lines if line.strip()}
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        return f"it cannot be compared with {hash_file(path).name} ({error})"
    return None if found in expected else f"its content is not that of {hash_file(path).name}"


def untrusted(path: Path, package: Path | None = None) -> str | None:
    """Why somebody else could have written a file or folder: the owner or the mode of it or of a folder that
    leads to it, symbolic links included. None where it is ours.

    `package` is the folder of the code that runs. What lies in it is trusted as that code is: it may belong
    to the same owner and be writable for the same group, and the folders above are not asked.
    """
    owners, groups = {0, os.geteuid()}, set[int]()
    try:
        if package is not None:
            code = package.stat()
            owners.add(code.st_uid)
            groups |= {code.st_gid} if code.st_mode & stat.S_IWGRP else set()
        for each, info in _leading_to(path, package):
            reason = _foreign(info, owners, groups)
            if reason is not None:
                return f"{each} {reason}"
    except OSError as error:
        return f"its owner is not known ({error})"
    return None


def hash_file(path: Path) -> Path:
    """The file beside a library with the hash of its content."""
    return path.with_name(f"{path.name}.sha256")


def install(made: Path, target: Path, check: Callable[[Path], object]) -> None:
    """Puts a library into its place, complete or not at all: written to the disk, called `check` with a copy
    in the same folder, then renamed. A process that loads meanwhile finds the old one or the new one, and the
    hash of either. Raises OSError, and what `check` raises."""
    with TemporaryDirectory(dir=target.parent, prefix=SCRATCH) as scratch:
        copy = Path(scratch, target.name)
        copyfile(made, copy)
        copy.chmod(0o755)
        _synced(copy)
        check(copy)
        digest = hashlib.sha256(copy.read_bytes()).hexdigest()
        lines = [f"{digest}  {target.name}\n"]
        if target.exists() and damaged(target) is None:
            old = hashlib.sha256(target.read_bytes()).hexdigest()
            lines += [f"{old}  {target.name}\n"] if old != digest else []
        listed = hash_file(copy)
        listed.write_text("".join(lines))
        listed.chmod(0o644)
        _synced(listed)
        listed.replace(hash_file(target))
        copy.replace(target)
        _synced(target.parent)


def make_folder(folder: Path, mode: int) -> None:
    """Makes a folder and those above it that are missing, all with this mode whatever the umask is."""
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            each.mkdir(exist_ok=True)
            each.chmod(mode)


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


def _leading_to(path: Path, root: Path | None) -> Iterator[tuple[Path, os.stat_result]]:
    """A path and the folders above it, below `root`, with those that symbolic links lead through."""
    left, seen = [path.absolute()], set[Path]()
    while left:
        path = left.pop()
        for each in (path, *path.parents):
            if each in seen or each == root:
                break
            seen.add(each)
            info = each.lstat()
            yield each, info
            if stat.S_ISLNK(info.st_mode):
                left.append(each.parent / os.readlink(each))


def _foreign(info: os.stat_result, owners: set[int], groups: set[int]) -> str | None:
    if info.st_uid not in owners:
        return f"belongs to the user {info.st_uid}"
    # Others can add to a folder with the sticky bit, /tmp, but replace nothing in it.
    if stat.S_ISLNK(info.st_mode) or (stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX):
        return None
    if info.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    if info.st_mode & stat.S_IWGRP and info.st_gid not in groups and not _private(info):
        return f"can be written by the group {info.st_gid}"
    return None


def _private(info: os.stat_result) -> bool:
    """Whether a group is that of the owner alone, as the systems make them whose files all are writable for
    the group (a umask of 002)."""
    import grp
    import pwd

    try:
        owner, group = pwd.getpwuid(info.st_uid), grp.getgrgid(info.st_gid)
    except KeyError:
        return False
    return (
        owner.pw_gid == info.st_gid
        and group.gr_name == owner.pw_name
        and (set(group.gr_mem) <= {owner.pw_name})
    )


def _synced(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
