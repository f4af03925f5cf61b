"""The manifest: a line of JSON for every recording that has ended, in the folder of the results.

The last thing that is written for a recording, after its files are in place: a line says that they
are whole. Lines are appended under a lock, by one process at a time, and never changed; half a line
that a killed process left is passed over. Knows nothing of audio or models.
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

from ..errors import Code, ForescribeError, OutputError
from ..formats.transcript import Json, Transcript, seconds
from .inputs import STDIN, identity

NAME = "manifest.jsonl"

Status = Literal["succeeded", "failed", "skipped", "cancelled"]


@dataclass(frozen=True)
class Record:
    """What became of one recording.

    `path` as it was given, `source` from the folder of the results, so that both can move
    together; `outputs` likewise. `attempt` counts the times it was tried. `wall_s` is the time
    beside the others in the batch, so `rtfx`, audio seconds per second, falls as more share it.
    `coverage` holds seconds.
    """

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

    def to_dict(self) -> dict[str, Json]:
        """JSON. What is not known of a recording without a transcript is null."""
        return asdict(self) | {"warnings": list(self.warnings), "outputs": list(self.outputs)}


def result_fields(
    transcript: Transcript | None, error: ForescribeError | None, wall_s: float
) -> dict[str, Any]:
    """The fields of a record that say how a recording ended."""
    fields: dict[str, Any] = {
        "status": "succeeded" if error is None else "failed",
        "code": None if error is None else error.code,
        "message": None if error is None else error.message,
        "wall_s": round(wall_s, 3),
    }
    if transcript is None:
        return fields
    covered = transcript.coverage
    return fields | {
        "audio_s": transcript.duration,
        "rtfx": round(transcript.duration / wall_s, 2) if wall_s else None,
        "language": transcript.language,
        "coverage": {
            "decoded_s": seconds(covered.decoded_samples),
            "silent_s": seconds(covered.silent_samples),
            "failed_s": seconds(covered.failed_samples),
        },
        "acceptance_rate": transcript.stats.get("acceptance_rate"),
        "mean_acceptance_length": transcript.stats.get("mean_acceptance_length"),
        "warnings": tuple(notice.code for notice in transcript.warnings),
    }


class Manifest:
    """The lines of one folder, and what they say of each file in it.

    Absent until the first `append`. What other processes append is seen after `refresh`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.path = self.folder / NAME
        self._read = 0  # bytes
        self._wrote: dict[str, tuple[str, str | None]] = {}  # output -> source, fingerprint
        # By stem its outputs, those of its last record first; by source its stems, the latest last.
        self._stems: dict[str, list[str]] = {}
        self._names: dict[str, dict[str, None]] = {}
        self._attempts: Counter[str] = Counter()
        self.refresh()

    def relative(self, path: str | Path) -> str:
        """A path as records hold it."""
        return os.path.relpath(path, self.folder)

    def key(self, path: str) -> str:
        """A recording as records hold it."""
        return STDIN if path == STDIN else self.relative(identity(path))

    def fingerprint(self, output: str) -> str | None:
        """Of the result that an output file holds; None where no record knows the file."""
        return self._wrote.get(output, ("", None))[1]

    def owner(self, stem: str) -> str | None:
        """The source whose results have this name, while any of them is there."""
        outputs = self._stems.get(stem, [])
        if any((self.folder / output).is_file() for output in outputs):
            return self._wrote[outputs[0]][0]
        return None

    def stems_of(self, source: str) -> list[str]:
        """The names under which a source has results, the latest first."""
        names = reversed(self._names.get(source, {}))
        return [stem for stem in names if self.owner(stem) == source]

    def attempts(self, source: str) -> int:
        """How often it was tried."""
        return self._attempts[source]

    def append(self, records: Iterable[Record]) -> None:
        """Adds lines; call it with the lock. Raises OutputError."""
        # In ASCII: a path may hold bytes that are no text in any encoding.
        lines = "".join(json.dumps(record.to_dict()) + "\n" for record in records)
        with _refusals(self.path), self.path.open("a+b") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                lines = "\n" * (file.read(1) != b"\n") + lines  # behind half a line of the killed
            file.write(lines.encode())
        self.refresh()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone in the folder, and up to date. The lock is the kernel's: no process that was
        killed leaves one behind. Where a file system has none, records are still whole lines.
        Raises OutputError."""
        with ExitStack() as held:
            with _refusals(self.path):
                file = held.enter_context(self.path.open("ab"))
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            self.refresh()
            yield

    def refresh(self) -> None:
        """Reads what was appended since."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._read:
                    self._read = 0  # somebody began it anew
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.split(b"\n"):
            with suppress(ValueError, KeyError, TypeError, AttributeError):
                self._learn(json.loads(line))

    def _learn(self, record: dict[str, Any]) -> None:
        source, outputs = record["source"], [str(output) for output in record["outputs"]]
        self._attempts[source] += record["status"] in ("succeeded", "failed")
        for output in outputs:
            self._wrote[output] = source, record["fingerprint"]
        if outputs:
            stem = os.path.splitext(outputs[0])[0]
            kept = [o for o in self._stems.get(stem, ()) if o not in outputs]
            self._stems[stem] = outputs + kept
            names = self._names.setdefault(source, {})
            names.pop(stem, None)
            names[stem] = None


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise OutputError(
            f"cannot write {str(path)!r}: {error.strerror or error}; name another folder with -o",
            code="storage_full" if full else "unwritable_output",
        ) from error


__all__ = ["NAME", "Manifest", "Record", "Status", "result_fields"]
