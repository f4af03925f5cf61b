"""Check files before a commit: whitespace, size, merge marks, private keys, syntax of data files.

    python scripts/check_files.py FILE...    # these files
    python scripts/check_files.py            # all files that git tracks

Prints one line per fault; exit status 1 if there is one. Needs no network.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

MOST_BYTES = 500_000
LARGE = ("bundled/", "samples/", "tests/", "notebooks/walkthrough.ipynb")
"""Where larger files are expected: weights, recordings, and the notebook's pictures."""

COPIED = ("bundled/", "tests/api/data/")
"""Files that other programs wrote, whose whitespace is left as it is."""

LINK = "a symbolic link: on Windows, and out of some zip files, it is a file that holds a path"

KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
MERGE = re.compile(r"^(<{7}|>{7}|\|{7}) ", re.MULTILINE)
TRAILING = re.compile(r"[ \t]+$", re.MULTILINE)

PARSERS: dict[str, Callable[[str], object]] = {
    ".json": json.loads,
    ".ipynb": json.loads,
    ".jsonl": lambda text: [json.loads(line) for line in text.splitlines()],
    ".toml": tomllib.loads,
    ".yaml": lambda text: list(yaml.safe_load_all(text)),
    ".yml": lambda text: list(yaml.safe_load_all(text)),
}


def faults(name: str, data: bytes) -> Iterator[str]:
    """The faults of a file; binary files are checked for size only."""
    if len(data) > MOST_BYTES and not name.startswith(LARGE):
        yield f"{len(data)} bytes; at most {MOST_BYTES}"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    if "\0" in text:
        return
    if not name.startswith(COPIED):
        if TRAILING.search(text):
            yield "whitespace at the end of a line"
        if text and not text.endswith("\n"):
            yield "no newline at the end"
    if MERGE.search(text):
        yield "marks of a merge conflict"
    if KEY.search(text):
        yield "a private key"
    parse = PARSERS.get(Path(name).suffix)
    if parse is not None:
        try:
            parse(text)
        except (ValueError, yaml.YAMLError) as error:
            yield f"syntax error: {error}"


def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def main(names: list[str]) -> int:
    status = 0
    for name in names or tracked():
        path = Path(name)
        if not path.is_file() and not path.is_symlink():
            continue
        found = [LINK] if path.is_symlink() else faults(path.as_posix(), path.read_bytes())
        for fault in found:
            print(f"{name}: {fault}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
