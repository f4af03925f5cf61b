"""Ledgers: what is known of the results of an output; and the manifest, the ledger of a folder.

A `Ledger` says which names and results there are, and gets a record of every recording that has ended, after
its files are in place: it says that they are complete. `Ledger` itself is that of stdout, where nothing is
known or kept; `asr.records.record_store.RecordLedger` has records that are created once.

A `Manifest` is a line of JSON for every record, in the folder of the results. Lines are appended under a
lock, by one process at a time, and never changed; half a line that a killed process left is skipped. Knows
files and fingerprints; nothing of audio or models.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import Code, ForescribeError, UsageError, output_errors
from ..formats.files import TEMPORARY
from ..formats.transcript import Transcript
from ..formats.transcript_parts import Json, seconds
from ..records.sources import STDIN, Source, identity
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


class Ledger:
    """What is known of the results of an output, and of what was written there: of stdout, nothing. Names are
    relative to the output, and a stem is a name without its extension.

    Attributes:
        folder: where the results are, in the form of `asr.records.sources.identity`; empty for stdout.
        in_background: whether `add` takes long enough, and is safe, to be called from other threads.
    """

    folder: str | Path = ""
    in_background = False

    def key(self, path: str) -> str:
        """A recording in the form of records."""
        return ""

    def owner(self, stem: str) -> str | None:
        """The source whose results have this name, if any of them exists."""
        return None

    def stems_of(self, source: str) -> list[str]:
        """The names under which a source has results, the latest first."""
        return []

    def fingerprint(self, output: str) -> str | None:
        """The fingerprint of the result in an output file; None without a record."""
        return None

    def begin(
        self,
        sources: Sequence[Source],
        settings: str,
        formats: tuple[str, ...],
        *,
        overwrite: bool,
        dry_run: bool,
    ) -> None:
        """Begin or continue the run of the output; with `dry_run` nothing is written. Raises UsageError for
        results that cannot be beside those of this run."""

    def stands(self, path: str, outputs: Sequence[str], settings: str) -> Record | None:
        """The record of a recording whose results are in these files, all of which exist, made with these
        settings; its fingerprint and version tell whether the content was the same."""
        return None

    def record(self, path: str, **fields: Any) -> Record:
        """A new record of a recording."""
        return Record(path, **fields)

    def locked(self) -> AbstractContextManager[None]:
        """Held from `replacing` to `add`: no other process writes results meanwhile."""
        return nullcontext()

    def replacing(self, path: str, outputs: Sequence[str], fingerprint: str | None) -> None:
        """Told before results of this fingerprint are written to these files."""

    def add(
        self, record: Record, *, version: str | None = None, worker: str | None = None
    ) -> Record:
        """Keep the record of a recording whose files are written; returns it as it is kept. `version` is
        that of the content, and `worker` who of a fleet has transcribed it. Raises ForescribeError."""
        return record

    def cancel(self, records: Sequence[Record]) -> None:
        """Told of recordings that will not be transcribed in this run. Raises ForescribeError."""

    def sweep(self, stems: Iterable[str]) -> None:
        """Remove what killed processes left half written beside these names."""

    def close(self) -> None:
        """After the last record of a run."""


class Manifest(Ledger):
    """The lines of one folder, and what they say about its files.

    The file is created by the first `append`. Lines of other processes are read by `refresh`.
    """

    folder: Path

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

    def key(self, path: str) -> str:
        if path == STDIN or is_url(path):
            return path
        return os.path.relpath(identity(path), self.folder)

    def fingerprint(self, output: str) -> str | None:
        return self._wrote.get(output, ("", None))[1]

    def owner(self, stem: str) -> str | None:
        outputs = self._stems.get(stem, [])
        if any((self.folder / output).is_file() for output in outputs):
            return self._wrote[outputs[0]][0]
        return None

    def stems_of(self, source: str) -> list[str]:
        names = reversed(self._names.get(source, {}))
        return [stem for stem in names if self.owner(stem) == source]

    def stands(self, path: str, outputs: Sequence[str], settings: str) -> Record | None:
        """As all of the files have it: the last record alone may be of a run with other formats."""
        prints = {self.fingerprint(output) for output in outputs}
        mark = prints.pop()
        if prints or mark is None or not mark.endswith(f"+{settings}"):
            return None
        if not all((self.folder / output).is_file() for output in outputs):
            return None
        versions = {self._versions.get(output) for output in outputs}
        version = versions.pop() if len(versions) == 1 else None
        return self.record(
            path, status="succeeded", outputs=tuple(outputs), fingerprint=mark, version=version
        )

    def record(self, path: str, **fields: Any) -> Record:
        key = self.key(path)
        attempt = self._attempts[key] + (fields["status"] in ("succeeded", "failed"))
        return Record(path, source=key, attempt=attempt, **fields)

    def replacing(self, path: str, outputs: Sequence[str], fingerprint: str | None) -> None:
        """Removes the fingerprints of the files: if the process is killed before the new record, new files
        must not stand under the old one."""
        old = tuple(o for o in outputs if self.fingerprint(o) not in (None, fingerprint))
        if old:
            self.append([self.record(path, status="cancelled", outputs=old)])

    def add(
        self, record: Record, *, version: str | None = None, worker: str | None = None
    ) -> Record:
        if record.fingerprint:
            record = replace(record, version=version)
        self.append([record])
        return record

    def cancel(self, records: Sequence[Record]) -> None:
        if records:
            with self.locked():
                self.append(records)

    def sweep(self, stems: Iterable[str]) -> None:
        """Files are written under the lock, so those that exist while we hold it are abandoned."""
        if not self.path.exists():
            return
        folders = {(self.folder / stem).parent for stem in stems}
        with suppress(OSError), self.locked():
            for folder in folders:
                for path in folder.glob(TEMPORARY.format("*")):
                    path.unlink(missing_ok=True)

    def append(self, records: Iterable[Record]) -> None:
        """Append records; the caller holds the lock. Raises OutputError."""
        # In ASCII: a path may hold bytes that are no text in any encoding.
        lines = "".join(json.dumps(record.to_dict()) + "\n" for record in records)
        with output_errors(repr(str(self.path))), self.path.open("a+b") as file:
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
            with output_errors(repr(str(self.path))):
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
