"""Fingerprints: whether a result on disk is what this recording gives with these settings.

They depend on content, not on names or dates: a copied or moved recording keeps its fingerprint, a
changed one does not. Weights are sampled, as hashing gigabytes would take longer than transcribing
a short recording. Knows nothing of what the settings mean; needs neither numpy nor torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from ..formats.transcript_parts import Json

VERSION = 1
"""Increased when the results of older versions must be made again."""

SAMPLE = 1 << 20
"""Bytes read at both ends of a file of weights: training changes all numbers, these included."""


def result(content: str, settings: str) -> str:
    """The fingerprint of a result, of the hashes of the recording's bytes and of the settings."""
    return f"sha256:{content}+{settings}"


def content(path: str) -> str | None:
    """Hash a file's bytes; None if it cannot be read twice (a pipe) or at all."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return None


def version(path: str) -> str | None:
    """The size and the time of a file, which tell contents apart without reading them; None for what
    `content` cannot hash."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return f"{status.st_size}:{status.st_mtime_ns}" if stat.S_ISREG(status.st_mode) else None


def settings(values: Mapping[str, Json]) -> str:
    """Hash settings; their order does not matter."""
    text = json.dumps({"version": VERSION, **values}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def weights(folder: Path) -> str:
    """Hash a model's folder: small files whole, large ones by size and both ends.

    The folder's name is not included: the same weights at another place give the same text.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.suffix not in (".json", ".txt", ".safetensors", ".bin") or not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode(errors="surrogateescape"))
        with path.open("rb") as file:
            digest.update(file.read(SAMPLE))
            file.seek(max(SAMPLE, size - SAMPLE))
            digest.update(file.read())
    return digest.hexdigest()[:16]
