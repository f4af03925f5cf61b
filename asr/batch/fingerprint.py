"""Fingerprints: is a result on disk what this recording, with these settings, would give again?

Content, not name or date: a copied or moved recording keeps its fingerprint, a changed one loses
it. Weights are sampled, as hashing gigabytes would take longer than many a recording. Knows nothing
of what the settings mean; needs neither numpy nor torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..formats.transcript import Json

VERSION = 1
"""Raised when results of an older version must be made again."""

SAMPLE = 1 << 20
"""Bytes at both ends of a file of weights: training changes every number, so these too."""


@dataclass(frozen=True)
class Fingerprint:
    """Of one result: hashes of the recording's bytes and of the settings."""

    content: str
    settings: str

    def __str__(self) -> str:
        return f"sha256:{self.content}+{self.settings}"


def content(path: str) -> str | None:
    """The hash of a file's bytes; None for what cannot be read twice (a pipe) or at all."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return None


def settings(values: Mapping[str, Json]) -> str:
    """The hash of settings, in whatever order they come."""
    text = json.dumps({"version": VERSION, **values}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def weights(folder: Path) -> str:
    """The hash of a model's folder: its small files whole, of the large ones size and both ends.

    The folder's name is no part of it: the same weights elsewhere give the same text.
    """
    found = hashlib.sha256()
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.suffix not in (".json", ".txt", ".safetensors", ".bin") or not path.is_file():
            continue
        size = path.stat().st_size
        found.update(f"{path.name} {size} ".encode(errors="surrogateescape"))
        with path.open("rb") as file:
            found.update(file.read(SAMPLE))
            file.seek(max(SAMPLE, size - SAMPLE))
            found.update(file.read())
    return found.hexdigest()[:16]
