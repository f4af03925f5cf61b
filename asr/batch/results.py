"""Results of a run: a recording's files first, then its record, so that a record says that they are whole.

    writer = Writer(outputs, settings)
    result = writer.finished(source, outcome, content)

Knows outputs and records; nothing of how recordings are transcribed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..decode.options import Outcome
from ..errors import ForescribeError
from ..formats.transcript import Transcript
from ..records.record_store import RecordLedger
from ..records.sources import Source
from ..storage.locations import Location
from . import fingerprint
from .manifest import Record, result_fields
from .outputs import Outputs

if TYPE_CHECKING:
    from ..records.stored_records import StoredRecord


@dataclass(frozen=True)
class RecordingResult:
    """What became of a recording: its record, and its transcript or the error. `files` are paths, or
    locations in object storage."""

    record: Record
    transcript: Transcript | None = None
    error: ForescribeError | None = None
    files: tuple[Path | Location, ...] = ()


@dataclass(frozen=True)
class Written(Outcome):
    """The outcome of a recording whose files and record another machine has written. `stored` is the record
    that stands; None if there is none."""

    result: RecordingResult = field(kw_only=True)
    stored: StoredRecord | None = None


class Writer:
    """Writes the results and records of one output, whose run was begun, as a `Batch` needs them. Its methods
    raise nothing: an error in writing becomes the result's error.

    Where records are created once, `finished` may be called from several threads (`in_background`).
    """

    def __init__(self, outputs: Outputs, settings: str) -> None:
        self.outputs, self.ledger, self.settings = outputs, outputs.ledger, settings
        self.in_background = self.ledger.in_background

    def is_known(self, source: Source) -> bool:
        """Whether there is a result of the recording with these settings, whatever it was made from."""
        return self.outputs.stands(source, self.settings) is not None

    def is_done(self, source: Source) -> bool:
        """Whether its results hold what would be written again, as far as is known without fetching it."""
        known = self.outputs.stands(source, self.settings)
        if known is None:
            return False
        if source.location is not None:
            return source.version is not None and known.version == source.version
        content = fingerprint.content(source.path)
        return content is not None and known.fingerprint == self._mark(content)

    def is_unchanged(self, source: Source, content: str) -> bool:
        """Whether its results were made from bytes with this hash, with the same settings."""
        known = self.outputs.stands(source, self.settings)
        return known is not None and known.fingerprint == self._mark(content)

    def files(self, source: Source) -> list[Path | Location]:
        """The files of its results; none on stdout."""
        return [] if source.error is not None else self.outputs.files(source.path)

    def finished(self, source: Source, outcome: Outcome, content: str | None) -> RecordingResult:
        """Write the files and the record of an outcome. `content` is the hash of the recording's bytes, None
        if it cannot be resumed."""
        transcript, error = outcome.transcript, outcome.error
        mark = self._mark(content) if content else None
        written: list[str] = []
        try:
            with self.ledger.locked():
                if transcript is not None and error is None:
                    try:
                        written = self._write(source.path, transcript, mark)
                    except ForescribeError as refused:
                        error = refused
                fields = result_fields(transcript, error, outcome.wall_s)
                if error is None:
                    fields |= {"outputs": tuple(written), "fingerprint": mark}
                record = self.ledger.add(
                    self.ledger.record(source.path, **fields),
                    version=source.version,
                    worker=outcome.worker,
                )
        except ForescribeError as refused:  # without a record, the next run does it again
            error = error or refused
            fields = result_fields(transcript, error, outcome.wall_s)
            record = self.ledger.record(source.path, **fields)
        files = self.outputs.files(source.path) if written and error is None else []
        return RecordingResult(record, transcript, error, tuple(files))

    def written(self, outcome: Written) -> RecordingResult:
        """The result that another machine has written."""
        if outcome.stored is not None and isinstance(self.ledger, RecordLedger):
            self.ledger.records.adopt(outcome.stored)
        return outcome.result

    def failed(self, source: Source, error: ForescribeError) -> RecordingResult:
        """Write the record of a recording that was not transcribed."""
        record = self.ledger.record(source.path, **result_fields(None, error, 0.0))
        with suppress(ForescribeError), self.ledger.locked():
            record = self.ledger.add(record, version=source.version)
        return RecordingResult(record, None, error)

    def confirmed(self, source: Source) -> RecordingResult:
        """The result of a recording that was found unchanged after it was fetched: its record gets the new
        version."""
        known = self.outputs.stands(source, self.settings)
        if known is not None:
            with (
                suppress(ForescribeError),
                self.ledger.locked(),
            ):  # else it is fetched again, no more
                self.ledger.add(known, version=source.version)
        return self.skipped(source)

    def skipped(self, source: Source) -> RecordingResult:
        """The result of a recording that is up to date; nothing is written."""
        record = self.ledger.record(source.path, status="skipped")
        return RecordingResult(record, files=tuple(self.files(source)))

    def cancelled(self, sources: Iterable[Source]) -> list[RecordingResult]:
        """Results of recordings that will not be transcribed in this run."""
        records = [self.ledger.record(source.path, status="cancelled") for source in sources]
        with suppress(ForescribeError):
            self.ledger.cancel(records)
        return [RecordingResult(record) for record in records]

    def close(self) -> None:
        """After the last result."""
        self.ledger.close()

    def _write(self, path: str, transcript: Transcript, mark: str | None) -> list[str]:
        """Write the files; returns their names, none for stdout."""
        self.outputs.settle(path)
        names = self.outputs.names(path)
        self.ledger.replacing(path, names, mark)
        self.outputs.write(path, transcript)
        return names if self.outputs.where is not None else []

    def _mark(self, content: str) -> str:
        return fingerprint.result(content, self.settings)
