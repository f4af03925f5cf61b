"""Provenance: what a figure was measured with, so that it can be reproduced.

Knows versions, commits, weights and machines; nothing of the figures.

Where a benchmark's result goes: a table for people, and one line of JSON for machines.

Knows files and streams; nothing of what was measured.

Rows of cells as a plain-text table.

Knows widths and alignment; nothing of the contents.

Number formats of a benchmark's rows, by name.

    float32, float16, bfloat16, auto   a dtype
    int8, int8-bfloat16                matrices of 8-bit integers, and the rest in float32 or bfloat16

Knows names only.

The packages of the group `bench`.

Knows their names and whether they are installed; loads none of them.

Equality: how many of a system's tokens are those of plain decoding.

Knows tokens; nothing of how they were made.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import typer

from forescribe.asr.errors import OutputError, UsageError

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
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"kind": "cpu", "cpu": _cpu(), "cores": cores, "system": platform.platform()}


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
    """Return the commit that is checked out, with a plus if files have changed since; None if the
    package is installed.

    Otherwise the repository around an environment would be taken for ours.
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
    """The name of the CPU; from /proc on Linux, where `platform` has none."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


STDOUT = "-"


@dataclass(frozen=True)
class Sink:
    """`record` is the file for the JSON line, None, or "-" for stdout; the table is then on stderr."""

    record: str | None = None

    def check(self) -> None:
        """Check that the record can be written, before minutes of measuring. Raises UsageError."""
        if self.record in (None, STDOUT):
            return
        path = Path(self.record or "")
        folder = path.parent
        if path.is_dir():
            raise UsageError(f"--json {path} is a folder: name a file in it")
        if not folder.is_dir():
            raise UsageError(f"--json {path}: there is no folder {folder}; make it first")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise UsageError(f"--json {path} cannot be written: name another place")

    def write(self, table: str, record: Mapping[str, object]) -> None:
        """Write the table, then the record, so that the table survives a full disk. Raises
        OutputError."""
        typer.echo(table, err=self.record == STDOUT)
        if self.record is None:
            return
        line = json.dumps(record)
        if self.record == STDOUT:
            typer.echo(line)
            return
        try:
            Path(self.record).write_text(line + "\n", encoding="utf-8")
        except OSError as error:
            raise OutputError(
                f"--json {self.record} was not written: {error.strerror or error}"
            ) from error


def layout(lines: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table: the first column aligned left, others right, a rule below the
    head."""
    cells = [list(line) for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    out = []
    for line in cells:
        first, *rest = (c.rjust(w) if i else c.ljust(w) for i, (c, w) in _numbered(line, widths))
        out.append("  ".join([first, *rest]).rstrip())
    return [out[0], "-" * len(out[0]), *out[1:]]


def _numbered(line: list[str], widths: list[int]) -> Iterable[tuple[int, tuple[str, int]]]:
    return enumerate(zip(line, widths, strict=True))


INT8 = {"int8": "float32", "int8-bfloat16": "bfloat16"}
"""The formats with 8-bit integers, and the dtype of the rest."""

REDUCED = ("bfloat16", *INT8)


def dtype_of(name: str) -> str:
    """The dtype of a format, as `--dtype` takes it."""
    return INT8.get(name, name)


def quantization_of(name: str) -> str:
    """The quantization of a format, as `--quantize` takes it."""
    return "int8" if name in INT8 else "none"


INSTALL = "run `scripts/setup bench` in forescribe's folder"

NEEDED = {"jiwer": "jiwer", "faster_whisper": "faster-whisper", "ctranslate2": "ctranslate2"}
"""Module name to package name."""


def missing(*modules: str) -> str | None:
    """Return the package name of the first of these modules that is not installed."""
    return next((NEEDED[name] for name in modules if find_spec(name) is None), None)


Tokens = Sequence[int]


@dataclass(frozen=True)
class Equality:
    """Tokens count as equal up to the first difference in their window: after it the systems decode
    different prefixes, so agreement has no meaning."""

    tokens: int
    tokens_of: int  # of plain decoding, without end-of-text
    windows: int
    windows_of: int

    @property
    def complete(self) -> bool:
        return self.windows == self.windows_of


def compare(plain: Sequence[Tokens], other: Sequence[Tokens]) -> Equality:
    """Compare window by window, both without end-of-text, which some systems do not return."""
    pairs = list(zip(plain, other, strict=True))
    return Equality(
        tokens=sum(_common(a, b) for a, b in pairs),
        tokens_of=sum(len(a) for a in plain),
        windows=sum(list(a) == list(b) for a, b in pairs),
        windows_of=len(pairs),
    )


def _common(a: Tokens, b: Tokens) -> int:
    """Length of the common prefix."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
