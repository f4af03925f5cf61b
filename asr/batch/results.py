"""Results of a run: a recording's files first, then its record, so that a record says that they are whole.

    writer = ResultWriter(outputs, settings)
    result = writer.finished(source, outcome, content)

In a folder, files and record are written in one hold of the manifest's lock. Where records are created once
(`RecordedWriter`), any thread may write; if somebody else has recorded the recording meanwhile, our record is
dropped: equal settings give equal files.

Knows outputs, manifest and records; nothing of how recordings are transcribed.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import ForescribeError, OutputError
from ..formats.transcript import Transcript
from ..records.sources import Source, identity
from ..storage.locations import Location
from . import fingerprint
from .fingerprint import Fingerprint
from .manifest import Record, result_fields
from .outputs import Outputs, RecordedOutputs

if TYPE_CHECKING:
    from ..decode.options import Outcome


@dataclass(frozen=True)
class RecordingResult:
    """What became of a recording: its record, and its transcript or the error. `files` are paths, or
    locations in object storage."""

    record: Record
    transcript: Transcript | None = None
    error: ForescribeError | None = None
    files: tuple[Path | Location, ...] = ()


class Writer(ABC):
    """Writes the results and records of one output, as a `Batch` needs them. Its methods raise nothing: an
    error in writing becomes the result's error.

    Attributes:
        in_background: whether `finished` takes long enough, and is safe, to be called from other threads.
    """

    in_background: ClassVar[bool]

    def __init__(self, settings: str) -> None:
        self.settings = settings

    @abstractmethod
    def is_known(self, source: Source) -> bool:
        """Whether there is a result of the recording, whatever it was made from."""

    @abstractmethod
    def is_done(self, source: Source) -> bool:
        """Whether its results hold what would be written again, as far as is known without fetching it."""

    @abstractmethod
    def is_unchanged(self, source: Source, content: str) -> bool:
        """Whether its results were made from bytes with this hash, with the same settings."""

    @abstractmethod
    def files(self, source: Source) -> list[Path | Location]:
        """The files of its results; none on stdout."""

    @abstractmethod
    def finished(self, source: Source, outcome: Outcome, content: str | None) -> RecordingResult:
        """Write the files and the record of an outcome. `content` is the hash of the recording's bytes, None
        if it cannot be resumed."""

    @abstractmethod
    def failed(self, source: Source, error: ForescribeError) -> RecordingResult:
        """Write the record of a recording that was not transcribed."""

    @abstractmethod
    def confirmed(self, source: Source) -> RecordingResult:
        """The result of a recording that was found unchanged after it was fetched: its record gets the new
        version."""

    @abstractmethod
    def cancelled(self, sources: Iterable[Source]) -> list[RecordingResult]:
        """Results of recordings that will not be transcribed in this run."""

    @abstractmethod
    def close(self) -> None:
        """After the last result."""

    def skipped(self, source: Source) -> RecordingResult:
        """The result of a recording that is up to date; nothing is written."""
        return RecordingResult(
            self._record(source, status="skipped"), files=tuple(self.files(source))
        )

    @abstractmethod
    def _record(self, source: Source, **fields: Any) -> Record: ...

    def _mark(self, content: str) -> str:
        return str(Fingerprint(content, self.settings))


class ResultWriter(Writer):
    """For a folder or stdout."""

    in_background = False

    def __init__(self, outputs: Outputs, settings: str) -> None:
        super().__init__(settings)
        self.outputs = outputs

    def is_known(self, source: Source) -> bool:
        manifest = self.outputs.manifest
        files = self._paths(source)
        return manifest is not None and any(
            manifest.fingerprint(manifest.relative(f)) for f in files
        )

    def is_done(self, source: Source) -> bool:
        manifest, prints = self.outputs.manifest, self._prints(source)
        if manifest is None or not all(
            mark is not None and mark.endswith(f"+{self.settings}") for mark in prints
        ):
            return False  # without reading the recording
        if source.location is not None:
            versions = {manifest.version(manifest.relative(file)) for file in self._paths(source)}
            return len(prints) == 1 and source.version is not None and versions == {source.version}
        content = fingerprint.content(source.path)
        return content is not None and self.is_unchanged(source, content)

    def is_unchanged(self, source: Source, content: str) -> bool:
        return self._prints(source) == {self._mark(content)}

    def files(self, source: Source) -> list[Path | Location]:
        return [*self._paths(source)]

    def finished(self, source: Source, outcome: Outcome, content: str | None) -> RecordingResult:
        mark = self._mark(content) if content else None
        return self._write(source, outcome.transcript, outcome.error, outcome.wall_s, mark)

    def failed(self, source: Source, error: ForescribeError) -> RecordingResult:
        return self._write(source, None, error, 0.0, None)

    def confirmed(self, source: Source) -> RecordingResult:
        manifest = self.outputs.manifest
        assert manifest is not None  # only a folder has results that can be unchanged
        names = tuple(manifest.relative(file) for file in self._paths(source))
        (mark,) = self._prints(source)
        record = self._record(source, status="succeeded", outputs=names, fingerprint=mark)
        with suppress(OutputError), self._locked():  # without the line it is fetched again, no more
            self._append([record])
        return self.skipped(source)

    def cancelled(self, sources: Iterable[Source]) -> list[RecordingResult]:
        records = [self._record(source, status="cancelled") for source in sources]
        if records:
            with suppress(OutputError), self._locked():
                self._append(records)
        return [RecordingResult(record) for record in records]

    def close(self) -> None:
        """Every record has been appended."""

    def _paths(self, source: Source) -> list[Path]:
        return [] if source.error is not None else self.outputs.files(source.path)

    def _prints(self, source: Source) -> set[str | None]:
        """The fingerprints of the files, by file: the last record alone may be of a run with other formats.
        {None} if a file is missing."""
        manifest, files = self.outputs.manifest, self._paths(source)
        if manifest is None or not files or not all(map(os.path.isfile, files)):
            return {None}
        return {manifest.fingerprint(manifest.relative(file)) for file in files}

    def _write(
        self,
        source: Source,
        transcript: Transcript | None,
        error: ForescribeError | None,
        wall_s: float,
        mark: str | None,
    ) -> RecordingResult:
        files: tuple[Path, ...] = ()
        try:
            with self._locked():
                if transcript is not None and error is None:
                    try:
                        self._invalidate(source, mark)
                        files = tuple(self.outputs.write(source.path, transcript))
                    except OutputError as refused:
                        error = refused
                record = self._final_record(source, transcript, error, wall_s, files, mark)
                self._append([record])
        except OutputError as refused:  # of the manifest: without a record it will be done again
            error, files = error or refused, ()
            record = self._final_record(source, transcript, error, wall_s, files, mark)
        return RecordingResult(record, transcript, error, files)

    def _invalidate(self, source: Source, mark: str | None) -> None:
        """Remove the fingerprints of files that are about to be replaced: if the process is killed
        before the new record, new files must not stand under the old one."""
        manifest = self.outputs.manifest
        if manifest is None:
            return
        self.outputs.settle(source.path)
        names = [manifest.relative(file) for file in self.outputs.files(source.path)]
        old = tuple(name for name in names if manifest.fingerprint(name) not in (None, mark))
        if old:
            self._append([self._record(source, status="cancelled", outputs=old)])

    def _final_record(
        self,
        source: Source,
        transcript: Transcript | None,
        error: ForescribeError | None,
        wall_s: float,
        files: tuple[Path, ...],
        mark: str | None,
    ) -> Record:
        manifest = self.outputs.manifest
        return self._record(
            source,
            **result_fields(transcript, error, wall_s),
            outputs=() if manifest is None else tuple(map(manifest.relative, files)),
            fingerprint=mark if error is None else None,
        )

    def _record(self, source: Source, **fields: Any) -> Record:
        manifest = self.outputs.manifest
        if source.version is not None and fields.get("fingerprint"):
            fields["version"] = source.version
        if manifest is None:
            return Record(path=source.path, **fields)
        key = manifest.key(source.path)
        attempts = manifest.attempts(key) + (fields["status"] in ("succeeded", "failed"))
        return Record(path=source.path, source=key, attempt=attempts, **fields)

    def _locked(self) -> AbstractContextManager[None]:
        manifest = self.outputs.manifest
        return nullcontext() if manifest is None else manifest.locked()

    def _append(self, records: list[Record]) -> None:
        if self.outputs.manifest is not None:
            self.outputs.manifest.append(records)


class RecordedWriter(Writer):
    """For a run whose `RecordedOutputs.begin` was called, or one that was joined."""

    in_background = True

    def __init__(self, outputs: RecordedOutputs, settings: str) -> None:
        super().__init__(settings)
        self.outputs, self.records = outputs, outputs.records

    def is_known(self, source: Source) -> bool:
        return self.outputs.stands(source) is not None

    def is_done(self, source: Source) -> bool:
        stored = self.outputs.stands(source)
        if stored is None:
            return False
        if source.location is not None:
            return source.version is not None and stored.version == source.version
        content = fingerprint.content(source.path)
        return content is not None and self.is_unchanged(source, content)

    def is_unchanged(self, source: Source, content: str) -> bool:
        stored = self.outputs.stands(source)
        return stored is not None and stored.record.fingerprint == self._mark(content)

    def files(self, source: Source) -> list[Path | Location]:
        return [] if source.error is not None else [*self.outputs.files(source.path)]

    def finished(self, source: Source, outcome: Outcome, content: str | None) -> RecordingResult:
        mark = self._mark(content) if content else None
        transcript, error = outcome.transcript, outcome.error
        names: list[str] = []
        if transcript is not None and error is None:
            try:
                names = self.outputs.write(source.path, transcript)
            except ForescribeError as refused:
                error, names = refused, []
        fields = result_fields(transcript, error, outcome.wall_s)
        if error is None:
            others = self.outputs.other_outputs(source, mark, names)
            fields |= {"outputs": (*names, *others), "fingerprint": mark}
        record, error = self._recorded(source, fields, error, outcome.worker)
        files = [self.outputs.location / name for name in names] if error is None else []
        return RecordingResult(record, transcript, error, tuple(files))

    def failed(self, source: Source, error: ForescribeError) -> RecordingResult:
        record, _ = self._recorded(source, result_fields(None, error, 0.0), error)
        return RecordingResult(record, None, error)

    def confirmed(self, source: Source) -> RecordingResult:
        stored = self.outputs.known[identity(source.path)]
        with suppress(ForescribeError):  # without the record it is fetched again, no more
            self.records.create(stored.record, seen=stored.generation, version=source.version)
        return self.skipped(source)

    def cancelled(self, sources: Iterable[Source]) -> list[RecordingResult]:
        """Nothing is recorded: what has no record will be done."""
        return [RecordingResult(self._record(source, status="cancelled")) for source in sources]

    def close(self) -> None:
        """Merge the records, for readers who want one file; they are the truth without it."""
        if self.records.created:
            with suppress(ForescribeError):
                self.records.merge()

    def _record(self, source: Source, **fields: Any) -> Record:
        key = identity(source.path)
        stored = self.outputs.known.get(key)
        attempt = (stored.record.attempt if stored else 0) + (
            fields["status"] in ("succeeded", "failed")
        )
        return Record(path=source.path, source=key, attempt=attempt, **fields)

    def _recorded(
        self,
        source: Source,
        fields: dict[str, Any],
        error: ForescribeError | None,
        worker: str | None = None,
    ) -> tuple[Record, ForescribeError | None]:
        """Create the record; without one, the recording fails here and is done again by the next run."""
        record = self._record(source, **fields)
        seen = self.outputs.known.get(record.source)
        generation = seen.generation if seen else 0
        try:
            self.records.create(record, seen=generation, version=source.version, worker=worker)
        except ForescribeError as refused:
            if error is None:
                return self._record(source, **result_fields(None, refused, 0.0)), refused
        return record, error
