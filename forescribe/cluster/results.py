"""Results that workers write themselves, where records are created once: in object storage.

    run = RunResults.of(batch, whole=False)        # in the command; None: it writes results itself
    order = replace(order, writing=run.writing)
    run.assigned(source)                           # a recording with the names of its files

    results = WorkerResults(order.writing, stores)         # in a worker
    written = results.write(assigned, outcome, content)

Then the command only counts: transcripts come back without their text, unless a report needs them. The same
`Writer` writes in the command and in a worker, so files and records are the same. Knows nothing of Ray.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Self

from forescribe.asr.batch.outputs import Outputs
from forescribe.asr.batch.results import RecordingResult, Writer, Written
from forescribe.asr.errors import ForescribeError
from forescribe.asr.formats.subtitles import LineRules
from forescribe.asr.records.record_store import RecordLedger, RecordStore
from forescribe.asr.records.sources import Source, identity
from forescribe.asr.records.stored_records import Run, StoredRecord
from forescribe.asr.storage.locations import Location
from forescribe.asr.storage.stores import Stores

if TYPE_CHECKING:
    from forescribe.asr.decode.options import Outcome


@dataclass(frozen=True)
class Writing:
    """Where workers write, and for which run. `whole`: transcripts come back with their text."""

    where: Location
    folder: str  # the same, as records have it
    formats: tuple[str, ...]
    rules: LineRules
    settings: str
    run: Run
    whole: bool = False


@dataclass(frozen=True)
class Assigned(Source):
    """A recording with what the command knows of its results: the name of the files, whose that was, the
    latest record, and which of the files in it there are."""

    stem: str = ""
    owner: str | None = None
    known: StoredRecord | None = None
    existing: frozenset[str] = frozenset()


class RunResults:
    """The command's side of a run that writes to object storage."""

    def __init__(
        self, outputs: Outputs, ledger: RecordLedger, settings: str, *, whole: bool
    ) -> None:
        assert isinstance(outputs.where, Location)
        self.outputs, self.ledger = outputs, ledger
        self.writing = Writing(
            outputs.where,
            str(ledger.folder),
            outputs.formats,
            outputs.rules,
            settings,
            ledger.records.run,
            whole,
        )

    @classmethod
    def of(cls, outputs: Outputs, settings: str, *, whole: bool) -> Self | None:
        """None for a folder and for stdout: other machines may not see them, and a folder's manifest has
        one writer at a time."""
        ledger = outputs.ledger
        if not isinstance(ledger, RecordLedger) or not isinstance(outputs.where, Location):
            return None
        return cls(outputs, ledger, settings, whole=whole)

    def assigned(self, source: Source) -> Assigned:
        """A recording as a worker gets it."""
        known = self.ledger.known.get(identity(source.path))
        stem = self.outputs.stems[source.path]
        return Assigned(
            **{field.name: getattr(source, field.name) for field in fields(Source)},
            stem=stem,
            owner=self.outputs.owners.get(stem),
            known=known,
            existing=self.ledger.existing.intersection(known.record.outputs)
            if known
            else frozenset(),
        )

    def crashes(self, paths: Iterable[str]) -> dict[str, int]:
        """The workers that have died over recordings in this run so far, whoever ran it."""
        counts = {path: self.ledger.records.crashes(identity(path)) for path in paths}
        return {path: count for path, count in counts.items() if count}

    def count_crash(self, path: str) -> None:
        """Leave a mark, for the next run."""
        with suppress(ForescribeError):  # it is counted here, too
            self.ledger.records.count_crash(identity(path))


class WorkerResults:
    """A worker's side. Any thread may write. Raises LocatedError where this machine cannot write: others may
    be allowed what it is not."""

    def __init__(self, writing: Writing, stores: Stores) -> None:
        self.writing = writing
        self.records = RecordStore.open(writing.where, stores=stores)
        self.records.store.check_create()
        self.records.take_part(writing.run)

    def write(self, source: Assigned, outcome: Outcome, content: str | None) -> Written:
        """Write the files and the record of a recording; raises nothing, as `Writer`."""
        key, writing = identity(source.path), self.writing
        known = {} if source.known is None else {key: source.known}
        outputs = Outputs(
            writing.where,
            self.records.store,
            RecordLedger(self.records, writing.folder, known, source.existing),
            writing.formats,
            {source.path: source.stem},
            writing.rules,
            {source.stem: source.owner},
        )
        result = Writer(outputs, writing.settings).finished(source, outcome, content)
        stored = self.records.known(key)
        return Written(source.path, result=self._brief(result), stored=stored)

    def _brief(self, result: RecordingResult) -> RecordingResult:
        """What a command needs that only counts: an hour of speech is a megabyte."""
        if self.writing.whole or result.transcript is None:
            return result
        return replace(result, transcript=replace(result.transcript, segments=(), turns=()))
