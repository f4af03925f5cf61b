"""The names of results: one per recording, so that no result ever overwrites another or a recording.

A recording from a folder that was searched keeps its place below the output folder. A name is not
chosen if the results of another recording have it, in this run or by the manifest of an earlier
one, or if a file of that name is a recording itself. Knows names; writes nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ..records.recording_sources import STDIN, Source, identity
from . import fingerprint


class KnownNames(Protocol):
    """What earlier runs have written, as `asr.batch.manifest.Manifest` knows it."""

    @property
    def folder(self) -> str | Path: ...

    def key(self, path: str) -> str: ...

    def owner(self, stem: str) -> str | None: ...

    def stems_of(self, source: str) -> list[str]: ...

    def fingerprint(self, output: str) -> str | None: ...


LONGEST = 249
"""Bytes of a stem: with its format, a name has at most 255 on the usual file systems. Keys in object
storage are longer."""


def choose_stems(
    sources: Sequence[Source], formats: Sequence[str], manifest: KnownNames | None = None
) -> dict[str, str]:
    """File stems by source: the one its results have by the manifest, else the shortest one that no
    other recording could have.

    `a.mp3` and `a.wav` keep their extensions; `x/a.mp3` and `y/a.mp3` get a short hash of their paths.
    """
    choices = {source.path: _choices(source) for source in sources if source.error is None}
    kept = _kept(choices, manifest) if manifest else {}
    claims = Counter(
        name
        for path, names in choices.items()
        for name in ({kept[path]} if path in kept else set(names))
    )
    taken = _Taken(choices, formats, manifest)
    return {
        path: kept.get(path)
        or next((n for n in names if claims[n] == 1 and not taken(n, path)), names[-1])
        for path, names in choices.items()
    }


def hashed_names(source: Source) -> tuple[str, ...]:
    """The choices of last resort: stems with a hash of the path, the last one unique."""
    return _choices(source)[2:]


def _choices(source: Source) -> tuple[str, ...]:
    """Possible stems, the best first; the last one is unique."""
    digest = hashlib.sha256(os.fsencode(source.path)).hexdigest()
    path = Path("stdin" if source.path == STDIN else source.path)
    short, unique = _marked(path.stem, digest[:8]), _marked(path.stem, digest)
    plain = (name if _size(name) <= LONGEST else short for name in (path.stem, path.name))
    return tuple(os.path.join(source.place, name) for name in (*plain, short, unique))


def _size(name: str) -> int:
    return len(os.fsencode(name))


def _marked(stem: str, mark: str) -> str:
    """The stem with a mark; of a long one, as many whole characters as there is room for."""
    room = LONGEST - len(mark) - 1
    if _size(stem) > room:
        stem = os.fsencode(stem)[:room].decode("utf-8", errors="ignore")
    return f"{stem}-{mark}"


def _kept(choices: dict[str, tuple[str, ...]], manifest: KnownNames) -> dict[str, str]:
    """The names of earlier runs: a second `a` in the folder must not rename the first one."""
    kept = {}
    for path, names in choices.items():
        earlier = manifest.stems_of(manifest.key(path))
        name = next((stem for stem in earlier if stem in names), None)
        if name is not None:
            kept[path] = name
    return kept


class _Taken:
    """Whether the files of a name are another recording's results, or a recording itself."""

    def __init__(
        self,
        choices: dict[str, tuple[str, ...]],
        formats: Sequence[str],
        manifest: KnownNames | None,
    ) -> None:
        self.formats, self.manifest = formats, manifest
        self.inputs = {identity(path) for path in choices}
        self.keys = {manifest.key(path) for path in choices} if manifest else set()

    def __call__(self, stem: str, path: str) -> bool:
        if self.manifest is None:
            return False
        files = (os.path.join(self.manifest.folder, f"{stem}.{name}") for name in self.formats)
        if any(file in self.inputs for file in files):
            return True
        owner = self.manifest.owner(stem)
        if owner in (None, self.manifest.key(path)):
            return False
        return owner in self.keys or not self._moved(stem, path)

    def _moved(self, stem: str, path: str) -> bool:
        """Whether the owner is this recording at another place: its bytes are the same."""
        assert self.manifest is not None
        content = fingerprint.content(path)
        return content is not None and any(
            known is not None and known.startswith(f"sha256:{content}+")
            for known in (self.manifest.fingerprint(f"{stem}.{name}") for name in self.formats)
        )
