"""Provenance: what a figure was measured with, so that it can be reproduced.

Knows versions, commits, weights and machines; nothing of the figures. Import is light.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The repository."""

PACKAGES = (
    "forescribe",
    "torch",
    "transformers",
    "ctranslate2",
    "faster-whisper",
    "silero-vad",
    "jiwer",
    "numpy",
)


def record(program: str) -> dict[str, object]:
    """Return date, command, versions, commit and machine; `program` is the name of a module."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python -m {program} {shlex.join(sys.argv[1:])}".strip(),
        "versions": {"python": platform.python_version()} | {p: _version(p) for p in PACKAGES},
        "commit": commit(),
        "device": device(),
    }


def device() -> dict[str, object]:
    return {"kind": "cpu", "cpu": _cpu(), "cores": cores(), "system": platform.platform()}


def cores() -> int:
    """The number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine(threads: int | None = None) -> str:
    """The processor, the threads and the kernels, as the line above a table."""
    kernels = instruction_set()
    parts = [_cpu(), *([] if threads is None else [f"{threads} threads"])]
    parts.append("no native kernels" if kernels is None else f"native kernels for {kernels}")
    return ", ".join(parts)


def instruction_set() -> str | None:
    """The instruction set that the native kernels use on this machine; None where they cannot be used."""
    from forescribe.speculative.native import library

    return None if library.missing() is not None else library.load().instruction_set


def digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return the sha256 of files by name."""
    digests = {}
    for path in paths:
        with path.open("rb") as file:
            digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def weights(folder: Path) -> dict[str, str]:
    """Return the sha256 of the files of weights in a model folder."""
    return digests(sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]))


def commit() -> str | None:
    """Return the commit that is checked out, with a plus if files have changed since; None without a history:
    that of a repository around this folder is not ours."""
    if not (ROOT / ".git").exists():
        return None
    head = _git("rev-parse", "HEAD")
    if head is None:
        return None
    return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str | None:
    try:
        run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return run.stdout.strip() if run.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    """The name of the CPU; from /proc on Linux, where `platform` has none."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
