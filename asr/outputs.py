"""Where results go: one name per recording, decided and tried before anything is loaded."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asr.errors import OutputError, UsageError
from asr.transcript import Transcript
from asr.writers import formats, write

STDOUT = "-"


@dataclass(frozen=True)
class Destination:
    """A folder, or stdout, and the stem of every recording's files in it."""

    folder: Path | None  # None: stdout
    names: tuple[str, ...]  # of the formats
    stems: dict[str, str]

    @classmethod
    def of(cls, sources: Sequence[str], folder: str, names: str) -> Destination:
        """Checks everything that can be wrong without a transcript.

        Raises UsageError for unknown formats, for the same recording twice, and for several formats
        on stdout; OutputError for a folder that cannot be written.
        """
        wanted = tuple(f.name for f in formats(names))
        stems = _stems(sources)
        if folder == STDOUT:
            if len(wanted) > 1:
                raise UsageError("stdout takes one format: choose it, as in `-o - -f txt`")
            return cls(None, wanted, stems)
        path = Path(folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            raise OutputError(
                f"cannot write to the output folder {folder!r}: {error.strerror}; "
                "name another one with -o"
            ) from error
        return cls(path, wanted, stems)

    def write(self, source: str, transcript: Transcript) -> list[Path]:
        """The transcript in all formats. Raises OutputError."""
        if self.folder is None:
            sys.stdout.write(formats(self.names)[0].render(transcript))
            sys.stdout.flush()
            return []
        return write(transcript, self.folder, self.stems[source], self.names)


def _stems(sources: Sequence[str]) -> dict[str, str]:
    """File stems by source: the shortest that tell all recordings apart.

    `a.mp3` and `a.wav` keep their extensions, `x/a.mp3` and `y/a.mp3` get a short hash of their
    place, so no result ever overwrites another one.
    """
    twice = [s for s, n in Counter(map(os.path.normpath, sources)).items() if n > 1]
    if twice:
        raise UsageError(f"{twice[0]} was given twice")

    def unique(name: dict[str, str]) -> dict[str, str]:
        counts = Counter(name.values())
        return {s: n for s, n in name.items() if counts[n] == 1}

    plain = {s: "stdin" if s == STDOUT else Path(s).stem or Path(s).name for s in sources}
    whole = {s: Path(s).name or plain[s] for s in sources}
    hashed = {s: f"{plain[s]}-{hashlib.sha256(s.encode()).hexdigest()[:8]}" for s in sources}
    return {**hashed, **unique(whole), **unique(plain)}
