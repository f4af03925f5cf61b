"""The manifest: a line of JSON for every recording that has ended, in the folder of the results.

A line is written last, after a recording's files are in place, and says that they are complete.
Lines are appended under a lock, by one process at a time, and never changed; half a line that a
killed process left is skipped. Knows files and fingerprints; nothing of audio or models.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import Code, ForescribeError, OutputError, UsageError
from ..formats.transcript import Transcript
from ..formats.transcript_parts import Json, seconds
from ..records.sources import STDIN, identity
from ..storage.locations import is_url

NAME = "manifest.jsonl"
"""The file in the folder of the results."""

Status = Literal["succeeded", "failed", "skipped", "cancelled"]


@dataclass(frozen=True)
class Record:
    """What became of one recording.

    `path` is as given; `source` and `outputs` are relative to the folder of the results, so that
    all can be moved together. `attempt` counts the attempts. `wall_s` is the time from its first to
    its last window, shared with other recordings in the batch, so `rtfx`, audio seconds per second,
    is lower the more there are. `coverage` holds seconds. `version` tells contents of a recording that was
    fetched apart without reading it (`asr.storage.locations.Entry.version`)."""

    path: str
    status: Status
    source: str = ""
    code: Code | None = None
    message: str | None = None
    audio_s: float | None = None
    wall_s: float = 0.0
    rtfx: float | None = None
    language: str | None = None
    coverage: Mapping[str, float] | None = None
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    warnings: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    fingerprint: str | None = None
    attempt: int = 0
    version: str | None = None

    def to_dict(self) -> dict[str, Json]:
        """As a JSON object; without a transcript, unknown values are null. `version` is there for recordings
        that were fetched."""
        values = asdict(self) | {"warnings": list(self.warnings), "outputs": list(self.outputs)}
        if self.version is None:
            del values["version"]
        return values


def result_fields(
    transcript: Transcript | None, error: ForescribeError | None, wall_s: float
) -> dict[str, Any]:
    """Return the fields of a record that say how a recording ended."""
    fields: dict[str, Any] = {
        "status": "succeeded" if error is None else "failed",
        "code": None if error is None else error.code,
        "message": None if error is None else error.message,
        "wall_s": round(wall_s, 3),
    }
    if transcript is None:
        return fields
    coverage, wordless = transcript.coverage, transcript.coverage.wordless_samples
    return fields | {
        "audio_s": transcript.duration,
        "rtfx": round(transcript.duration / wall_s, 2) if wall_s else None,
        "language": transcript.language,
        "coverage": {
            "decoded_s": seconds(coverage.decoded_samples),
            "silent_s": seconds(coverage.silent_samples),
            "failed_s": seconds(coverage.failed_samples),
            "voice_without_words_s": None if wordless is None else seconds(wordless),
        },
        "acceptance_rate": transcript.stats.get("acceptance_rate"),
        "mean_acceptance_length": transcript.stats.get("mean_acceptance_length"),
        "warnings": tuple(notice.code for notice in transcript.warnings),
    }


class Manifest:
    """The lines of one folder, and what they say about its files.

    The file is created by the first `append`. Lines of other processes are read by `refresh`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.path = self.folder / NAME
        self._read = 0  # bytes
        self._wrote: dict[str, tuple[str, str | None]] = {}  # output -> source, fingerprint
        self._versions: dict[str, str | None] = {}  # by output
        # By stem its outputs, those of its last record first; by source its stems, the latest last.
        self._stems: dict[str, list[str]] = {}
        self._names: dict[str, dict[str, None]] = {}
        self._attempts: Counter[str] = Counter()
        self.refresh()
        self._check_own()

    def _check_own(self) -> None:
        """Raises UsageError for a file of this name that is not a manifest: other programs have lists of
        recordings that are called so."""
        if not self._read or self._attempts or self._wrote:
            return
        with self.path.open("rb") as file:
            lines = file.read(self._read).split(b"\n")
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:  # half a line of a killed process
                continue
            if not (isinstance(entry, dict) and entry.keys() >= {"path", "status"}):
                raise UsageError(
                    f"{self.path} was not written by forescribe, which records its results in files of "
                    "that name: name another folder with -o"
                )

    def relative(self, path: str | Path) -> str:
        """Return a path in the form of records."""
        return os.path.relpath(path, self.folder)

    def key(self, path: str) -> str:
        """Return a recording in the form of records."""
        return path if path == STDIN or is_url(path) else self.relative(identity(path))

    def fingerprint(self, output: str) -> str | None:
        """Return the fingerprint of the result in an output file; None without a record."""
        return self._wrote.get(output, ("", None))[1]

    def version(self, output: str) -> str | None:
        """Return the version of the recording whose result is in an output file, if it was fetched."""
        return self._versions.get(output)

    def owner(self, stem: str) -> str | None:
        """Return the source whose results have this name, if any of them exists."""
        outputs = self._stems.get(stem, [])
        if any((self.folder / output).is_file() for output in outputs):
            return self._wrote[outputs[0]][0]
        return None

    def stems_of(self, source: str) -> list[str]:
        """Return the names under which a source has results, the latest first."""
        names = reversed(self._names.get(source, {}))
        return [stem for stem in names if self.owner(stem) == source]

    def attempts(self, source: str) -> int:
        """Return how often a source was attempted."""
        return self._attempts[source]

    def append(self, records: Iterable[Record]) -> None:
        """Append records; the caller holds the lock. Raises OutputError."""
        self.append_lines(record.to_dict() for record in records)

    def append_lines(self, values: Iterable[Mapping[str, Json]]) -> None:
        """Append records that may have further fields, as `append` does."""
        # In ASCII: a path may hold bytes that are no text in any encoding.
        lines = "".join(json.dumps(entry) + "\n" for entry in values)
        with output_errors(self.path), self.path.open("a+b") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    lines = "\n" + lines  # after half a line of a killed process
            file.write(lines.encode())
        self.refresh()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder, up to date with its lines. The lock is the kernel's, so a killed
        process releases it. On file systems without locks, records are still whole lines. Raises
        OutputError."""
        with ExitStack() as held:
            with output_errors(self.path):
                file = held.enter_context(self.path.open("ab"))
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            self.refresh()
            yield

    def refresh(self) -> None:
        """Read the lines that were appended since."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._read:
                    self._read = 0  # it was replaced
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.split(b"\n"):
            with suppress(ValueError, KeyError, TypeError, AttributeError):
                self._index(json.loads(line))

    def _index(self, record: dict[str, Any]) -> None:
        """Add a line to the tables; raises what a malformed line raises."""
        source, outputs = record["source"], [str(output) for output in record["outputs"]]
        self._attempts[source] += record["status"] in ("succeeded", "failed")
        for output in outputs:
            self._wrote[output] = source, record["fingerprint"]
            self._versions[output] = record.get("version")
        if outputs:
            stem = os.path.splitext(outputs[0])[0]
            kept = [o for o in self._stems.get(stem, ()) if o not in outputs]
            self._stems[stem] = outputs + kept
            names = self._names.setdefault(source, {})
            names.pop(stem, None)
            names[stem] = None


@contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Raise OSError as OutputError, with code `storage_full` or `unwritable_output`."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise OutputError(
            f"cannot write {str(path)!r}: {error.strerror or error}; name another folder with -o",
            code="storage_full" if full else "unwritable_output",
        ) from error


__all__ = ["NAME", "Manifest", "Record", "Status", "output_errors", "result_fields"]
