"""The ledger of an output: what became of each recording, so that a run continues where it stopped.

A recording gets a record after its files are in place: it says that they are complete. Where records are kept
is the destination's matter (`asr.batch.destinations`): lines of a file, or objects that are created once.

A record's fingerprint says whether a result on disk is what a recording gives with these settings. It depends
on content, not on names or dates: a copied or moved recording keeps it, a changed one does not. Weights are
sampled, as hashing gigabytes would take longer than transcribing a short recording.

Knows names and fingerprints; nothing of audio or models, or of what settings mean. Needs neither numpy nor
torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import Code, ForescribeError
from ..formats.transcript import Transcript
from ..formats.transcript_parts import Json, seconds

Status = Literal["succeeded", "failed", "skipped", "cancelled"]

VERSION = 1
"""Increased when the results of older versions must be made again."""

KEPT = "kept "
"""Before the hash of an output that was edited before this record was made."""

SAMPLE = 1 << 20
"""Bytes read at both ends of a file of weights: training changes all numbers, these included."""


@dataclass(frozen=True)
class Record:
    """What became of one recording.

    `path` is as given; `source` and `outputs` are relative to the folder of the results, so that
    all can be moved together. `attempt` counts the attempts. `wall_s` is the time from its first to
    its last window, shared with other recordings in the batch, so `rtfx`, audio seconds per second,
    is lower the more there are. `coverage` holds seconds. `version` tells contents apart without reading:
    size and time of a file, size and tag of an object. `hashes`, by output, are SHA-256 of what was written
    last: a file with another one was edited. `KEPT` before it: with an earlier fingerprint."""

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
    hashes: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Json]:
        """As a JSON object; without a transcript, unknown values are null."""
        return asdict(self) | {"warnings": list(self.warnings), "outputs": list(self.outputs)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Record:
        """Raises KeyError, TypeError or ValueError for what is no record."""
        fields = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        fields |= {name: tuple(values[name]) for name in ("warnings", "outputs")}
        record = cls(**fields)
        texts = (record.path, record.source, *record.outputs, *record.hashes.values())
        marks = (record.fingerprint, record.version)
        whole = isinstance(record.attempt, int) and set(map(type, texts)) == {str}
        if not whole or not {*map(type, marks)} <= {str, type(None)}:
            raise ValueError("a record with values of another kind")
        return record


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
            "loud_silence_s": seconds(coverage.loud_samples),
        },
        "acceptance_rate": transcript.stats.get("acceptance_rate"),
        "mean_acceptance_length": transcript.stats.get("mean_acceptance_length"),
        "warnings": tuple(notice.code for notice in transcript.warnings),
    }


class Destination:
    """Where files and records go. This one knows and keeps nothing; what differs is overridden.

    `in_background`: `put` and `keep` take long, and may be called from several threads."""

    in_background = False

    def key(self, path: str) -> str:
        """A recording in the form of records."""
        return ""

    def exists(self, name: str) -> bool:
        return False

    def read(self, name: str) -> bytes:
        """The content of a file. Raises OSError, LocatedError."""
        raise FileNotFoundError(name)

    def put(self, name: str, data: bytes) -> None:
        """Write a file, replacing another one at once. Raises OutputError, LocatedError."""
        raise NotImplementedError

    def fresh(self) -> Iterable[Record]:
        """The records that were made since the last call, the latest last."""
        return ()

    def keep(self, record: Record) -> Record:
        """Store a record, after its files; returns the one that stands. Raises ForescribeError."""
        return record

    def locked(self) -> AbstractContextManager[None]:
        """No other process writes meanwhile, where that can be had."""
        return nullcontext()

    def sweep(self, names: Iterable[str]) -> None:
        """Remove what killed processes left half written beside these names."""

    def close(self) -> None:
        """After the last record of a run."""


class Ledger:
    """The records of a destination, by what they say about its files. Names are relative to the destination,
    and a stem is a name without its extension. Raises what reading the destination raises."""

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self._wrote: dict[str, Record] = {}  # by output the last record that names it
        self._stems: dict[str, dict[str, None]] = {}  # by stem its outputs, the latest last
        self._names: dict[str, dict[str, None]] = {}  # by source its stems, the latest last
        self._attempts: Counter[str] = Counter()
        self.key = destination.key
        self._refresh()

    def owner(self, stem: str) -> str | None:
        """The source whose results have this name, if any of them exists."""
        outputs = list(self._stems.get(stem, ()))
        if any(map(self.destination.exists, outputs)):
            return self._wrote[outputs[-1]].source
        return None

    def stems_of(self, source: str) -> list[str]:
        """The names under which a source has results, the latest first."""
        names = reversed(self._names.get(source, {}))
        return [stem for stem in names if self.owner(stem) == source]

    def fingerprint(self, output: str) -> str | None:
        """The fingerprint of the result in an output file; None without a record."""
        record = self._wrote.get(output)
        return None if record is None else record.fingerprint

    def holds(self, output: str, fingerprint: str | None) -> bool:
        """Whether a file exists that was written with this fingerprint; None is of no file."""
        known = fingerprint is not None and self.fingerprint(output) == fingerprint
        return known and self.destination.exists(output)

    def hash(self, output: str) -> str | None:
        """The hash of what was written to an output last, as far as that is known."""
        record = self._wrote.get(output)
        return None if record is None else record.hashes.get(output)

    def kept_hash(self, output: str, fingerprint: str | None) -> str:
        """The hash of an edited output, for a record with this fingerprint."""
        known = self.hash(output) or ""
        same = self.fingerprint(output) == fingerprint or known.startswith(KEPT)
        return known if same else KEPT + known

    def edited(self, output: str) -> bool:
        """Whether a file exists that holds something else than what was written to it."""
        written = self.hash(output)
        try:
            data = b"" if written is None else self.destination.read(output)
        except OSError:
            return self.destination.exists(output)  # what cannot be read is not replaced either
        return written is not None and written != hashlib.sha256(data).hexdigest()

    def stands(self, path: str, outputs: Sequence[str], settings: str) -> Record | None:
        """The record of a recording whose results are in these files, all of which exist, made with these
        settings; its fingerprint and version tell whether the content was the same."""
        records = [record for record in map(self._wrote.get, outputs) if record is not None]
        mark = records[0].fingerprint if records else None
        if mark is None or not mark.endswith(f"+{settings}"):
            return None
        if not all(self.holds(output, mark) for output in outputs):
            return None
        versions = {record.version for record in records}
        return replace(
            records[0],
            path=path,
            source=self.key(path),
            outputs=tuple(outputs),
            hashes={name: digest for name in outputs if (digest := self.hash(name))},
            version=versions.pop() if len(versions) == 1 else None,
        )

    def record(self, path: str, **fields: Any) -> Record:
        """A new record of a recording."""
        key = self.key(path)
        attempt = self._attempts[key] + (fields["status"] in ("succeeded", "failed"))
        return Record(path, source=key, attempt=attempt, **fields)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Held from `replacing` to `add`, up to date: where the destination can lock, no other process writes
        results meanwhile."""
        with self.destination.locked():
            self._refresh()
            yield

    def replacing(self, path: str, outputs: Iterable[str], fingerprint: str | None) -> None:
        """Told before results of this fingerprint are written to these files. Takes back the record of
        others in them: if the process is killed now, new files must not stand under the old one."""
        old = tuple(o for o in outputs if self.fingerprint(o) not in (None, fingerprint))
        if old:
            self.destination.keep(self.record(path, status="cancelled", outputs=old))

    def add(self, record: Record) -> Record:
        """Keep the record of a recording whose files are written, with its results of the same content in
        other formats; returns it as it is kept. Raises ForescribeError."""
        if record.fingerprint and record.outputs:
            stem = os.path.splitext(record.outputs[0])[0]
            others = [
                output
                for output in self._stems.get(stem, ())
                if output not in record.outputs and self.holds(output, record.fingerprint)
            ]
            hashes = {name: digest for name in others if (digest := self.hash(name))}
            record = replace(
                record, outputs=(*record.outputs, *others), hashes={**record.hashes, **hashes}
            )
        return self.destination.keep(record)

    def _refresh(self) -> None:
        """Read the records that were made since, by anybody."""
        for record in self.destination.fresh():
            self._attempts[record.source] = max(record.attempt, self._attempts[record.source])
            for output in record.outputs:
                self._wrote[output] = record
                stem = os.path.splitext(output)[0]
                outputs = self._stems.setdefault(stem, {})
                outputs.pop(output, None)
                outputs[output] = None
                names = self._names.setdefault(record.source, {})
                names.pop(stem, None)
                names[stem] = None


def content_hash(path: str) -> str | None:
    """Hash a file's bytes; None if it cannot be read twice (a pipe) or at all."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return None


def file_version(path: str) -> str | None:
    """The size and the time of a file, which tell contents apart without reading them; None for what
    `content_hash` cannot read."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return f"{status.st_size}:{status.st_mtime_ns}" if stat.S_ISREG(status.st_mode) else None


def settings_hash(values: Mapping[str, Json]) -> str:
    """Hash settings; their order does not matter."""
    text = json.dumps({"version": VERSION, **values}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def weights_hash(folder: Path) -> str:
    """Hash a model's folder: small files whole, large ones by size and both ends.

    The folder's name is not included: the same weights at another place give the same text.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".json", ".txt", ".safetensors", ".bin") or not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode(errors="surrogateescape"))
        with path.open("rb") as file:
            digest.update(file.read(SAMPLE))
            file.seek(max(SAMPLE, size - SAMPLE))
            digest.update(file.read())
    return digest.hexdigest()[:16]
