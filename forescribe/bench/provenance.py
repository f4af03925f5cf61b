"""Provenance: what a figure was measured with, so that it can be measured again."""

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

ROOT = Path(__file__).parents[2]
"""The repository, or wherever the packages were installed."""

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
    """Date, command, versions, commit and machine. `program` is what was typed before the arguments."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"{program} {shlex.join(sys.argv[1:])}".strip(),
        "versions": {"python": platform.python_version()} | {p: _version(p) for p in PACKAGES},
        "commit": commit(),
        "device": device(),
    }


def device() -> dict[str, object]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"kind": "cpu", "cpu": _cpu(), "cores": cores, "system": platform.platform()}


def digests(paths: Iterable[Path]) -> dict[str, str]:
    """sha256 by file name."""
    found = {}
    for path in paths:
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def weights(folder: Path) -> dict[str, str]:
    """sha256 of a model folder's weights."""
    return digests(sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]))


def commit() -> str | None:
    """What is checked out, with a plus where it was changed since; None where this is installed.

    An environment inside somebody's own repository would else be taken for a commit of ours.
    """
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
    """The model's name; /proc where there is one, for `platform` has none on Linux."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
