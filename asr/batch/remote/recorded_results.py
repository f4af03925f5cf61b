"""Results whose records are created once: a recording's files first, its record last.

    writer = RecordedWriter(outputs, settings)
    result = writer.finished(source, outcome, content)     # in any thread

If somebody else has recorded the recording meanwhile, ours is dropped: equal settings give equal files.
Knows outputs and records; nothing of how recordings are transcribed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ForescribeError
from ...records.recording_sources import Source, identity
from ...storage.locations import Location
from .. import fingerprint
from ..fingerprint import Fingerprint
from ..manifest import Record, result_fields
from ..recording_results import RecordingResult
from .recorded_outputs import RecordedOutputs

if TYPE_CHECKING:
    from ...decode.outcome import Outcome


class RecordedWriter:
    """Writes the results of a run whose `RecordedOutputs.begin` was called, or of one that was joined."""

    in_background = True

    def __init__(self, outputs: RecordedOutputs, settings: str) -> None:
        self.outputs, self.settings = outputs, settings
        self.records = outputs.records

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
        return [*self._locations(source)]

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
        record, error_ = self._recorded(source, result_fields(None, error, 0.0), error)
        return RecordingResult(record, None, error_)

    def skipped(self, source: Source) -> RecordingResult:
        record = self._record(source, {"status": "skipped"})
        return RecordingResult(record, files=tuple(self._locations(source)))

    def confirmed(self, source: Source) -> RecordingResult:
        stored = self.outputs.known[identity(source.path)]
        with suppress(ForescribeError):  # without the record it is fetched again, no more
            self.records.create(stored.record, seen=stored.generation, version=source.version)
        return self.skipped(source)

    def cancelled(self, sources: Iterable[Source]) -> list[RecordingResult]:
        """Nothing is recorded: what has no record will be done."""
        return [
            RecordingResult(self._record(source, {"status": "cancelled"})) for source in sources
        ]

    def close(self) -> None:
        """Merge the records, for readers who want one file; they are the truth without it."""
        if self.records.created:
            with suppress(ForescribeError):
                self.records.merge()

    def _locations(self, source: Source) -> list[Location]:
        return [] if source.error is not None else self.outputs.files(source.path)

    def _mark(self, content: str) -> str:
        return str(Fingerprint(content, self.settings))

    def _record(self, source: Source, fields: dict[str, Any]) -> Record:
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
        record = self._record(source, fields)
        seen = self.outputs.known.get(record.source)
        generation = seen.generation if seen else 0
        try:
            self.records.create(record, seen=generation, version=source.version, worker=worker)
        except ForescribeError as refused:
            if error is None:
                return self._record(source, result_fields(None, refused, 0.0)), refused
        return record, error


__all__ = ["RecordedWriter"]
