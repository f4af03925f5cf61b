"""Results of a run: a recording's files, then its record in the manifest.

    writer = ResultWriter(outputs)
    result = writer.finished(source, outcome, mark)

A record is written after its files, in one hold of the manifest's lock, so it says that they are
whole. Knows outputs and manifest; nothing of how recordings are transcribed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ForescribeError, OutputError
from ..formats.transcript import Transcript
from .inputs import Source
from .manifest import Record, result_fields
from .outputs import Outputs

if TYPE_CHECKING:
    from ..decode.outcome import Outcome


@dataclass(frozen=True)
class RecordingResult:
    """What became of a recording: its record, and its transcript or the error."""

    record: Record
    transcript: Transcript | None = None
    error: ForescribeError | None = None
    files: tuple[Path, ...] = ()


class ResultWriter:
    """Writes the results of one run to its outputs."""

    def __init__(self, outputs: Outputs) -> None:
        self.outputs = outputs

    def finished(self, source: Source, outcome: Outcome, mark: str | None) -> RecordingResult:
        """Write the files and the record of an outcome; `mark` is its fingerprint, None if it has none.
        An error in writing becomes the result's error."""
        return self._write(source, outcome.transcript, outcome.error, outcome.wall_s, mark)

    def failed(self, source: Source, error: ForescribeError) -> RecordingResult:
        """Write the record of a recording that was not transcribed."""
        return self._write(source, None, error, 0.0, None)

    def skipped(self, source: Source) -> RecordingResult:
        """The result of a recording that is up to date; nothing is written."""
        files = () if source.error is not None else tuple(self.outputs.files(source.path))
        return RecordingResult(self._record(source, status="skipped"), files=files)

    def cancelled(self, sources: Iterable[Source]) -> list[RecordingResult]:
        """Write the records of recordings that will not be transcribed in this run."""
        records = [self._record(source, status="cancelled") for source in sources]
        if records:
            with suppress(OutputError), self._locked():
                self._append(records)
        return [RecordingResult(record) for record in records]

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
