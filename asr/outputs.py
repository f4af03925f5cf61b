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

STDOUT = STDIN = "-"


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
            _print(formats(self.names)[0].render(transcript))
            return []
        return write(transcript, self.folder, self.stems[source], self.names)


def _print(text: str) -> None:
    """To stdout, in UTF-8 as in files, whatever the locale says."""
    try:
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader has seen enough: no fault
        raise
    except OSError as error:
        raise OutputError(f"cannot write to stdout: {error.strerror}") from error


def _stems(sources: Sequence[str]) -> dict[str, str]:
    """File stems by source: the shortest that no other recording could take.

    `a.mp3` and `a.wav` keep their extensions, `x/a.mp3` and `y/a.mp3` get a short hash of their
    place, so no result ever overwrites another one.
    """
    places = Counter(STDIN if s == STDIN else os.path.abspath(s) for s in sources)
    twice = next((place for place, n in places.items() if n > 1), None)
    if twice is not None:
        raise UsageError(f"{'stdin' if twice == STDIN else twice} was given twice")
    choices = {source: _choices(source) for source in sources}
    claims = Counter(name for names in choices.values() for name in set(names))
    return {
        source: next((name for name in names if claims[name] == 1), names[-1])
        for source, names in choices.items()
    }


def _choices(source: str) -> tuple[str, ...]:
    """Possible stems, the best first; the last one is nobody else's."""
    digest = hashlib.sha256(os.fsencode(source)).hexdigest()
    path = Path("stdin" if source == STDIN else source)
    return path.stem, path.name, f"{path.stem}-{digest[:8]}", f"{path.stem}-{digest}"
