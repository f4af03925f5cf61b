"""Where results go when their records are created once: object storage, or a folder of several machines.

    outputs = RecordedOutputs.plan(sources, "s3://out/2026", "json,srt", stores=stores)
    outputs.begin(settings, overwrite=False)
    outputs.write(source, transcript)            # s3://out/2026/a.json, s3://out/2026/a.srt

Knows names, formats and records; `recorded_results` writes results and records in their order.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from ...errors import UsageError
from ...formats.files import formats, rendered
from ...formats.subtitles import PLAIN, LineRules
from ...formats.transcript import Transcript
from ...records.record_files import RecordFiles
from ...records.record_store import RecordStore
from ...records.recording_sources import Source, identity
from ...records.run_settings import Run
from ...records.stored_records import StoredRecord
from ...storage.locations import Location
from ...storage.opening_stores import Stores
from ..output_names import choose_stems


class RecordedNames:
    """What records say about names: the part of `asr.batch.manifest.Manifest` that choosing names needs."""

    def __init__(
        self, folder: str, records: Mapping[str, StoredRecord], existing: frozenset[str]
    ) -> None:
        self.folder, self.records, self.existing = folder, records, existing
        self._outputs = {
            output: stored for stored in records.values() for output in stored.record.outputs
        }
        self._stems = {
            os.path.splitext(output)[0]: stored for output, stored in self._outputs.items()
        }

    def key(self, path: str) -> str:
        return identity(path)

    def fingerprint(self, output: str) -> str | None:
        stored = self._outputs.get(output)
        return stored.record.fingerprint if stored else None

    def owner(self, stem: str) -> str | None:
        """The source whose results have this name, if any of them exists."""
        stored = self._stems.get(stem)
        if stored and any(output in self.existing for output in stored.record.outputs):
            return stored.source
        return None

    def stems_of(self, source: str) -> list[str]:
        stored = self.records.get(source)
        outputs = stored.record.outputs if stored else ()
        stems = dict.fromkeys(os.path.splitext(output)[0] for output in outputs)
        return [stem for stem in stems if self.owner(stem) == source]


@dataclass(frozen=True)
class RecordedOutputs:
    """Names, formats and records of one run's results below `location`.

    `existing` are the files there when the run was planned, and `known` the latest records of that time.
    """

    location: Location
    store: RecordFiles
    records: RecordStore
    formats: tuple[str, ...]
    stems: Mapping[str, str]
    rules: LineRules = PLAIN
    existing: frozenset[str] = frozenset()
    known: Mapping[str, StoredRecord] = field(default_factory=dict)

    @classmethod
    def plan(
        cls,
        sources: Sequence[Source],
        location: Location,
        names: str,
        *,
        rules: LineRules = PLAIN,
        stores: Stores,
        check: bool = True,
    ) -> RecordedOutputs:
        """Choose names for the results of `sources` and read the records of earlier runs.

        With `check`, see that the store can be written to and honours conditions. Raises UsageError for
        formats and for locations that can only be read, LocatedError for stores.
        """
        chosen = tuple(format_.name for format_ in formats(names))
        if not rules.plain and not {"srt", "vtt"} & set(chosen):
            raise UsageError(
                "line rules and --highlight-words shape subtitles: add srt or vtt to -f"
            )
        records = RecordStore.open(location, stores=stores)
        store = stores.at(location)
        if check:
            store.check_create()
        entries = store.list()
        known = dict(records.load(entries))
        existing = frozenset(entry.key for entry in entries)
        told = RecordedNames(location.identity, known, existing)
        stems = choose_stems(sources, chosen, told)
        return cls(location, store, records, chosen, stems, rules, existing, known)

    @property
    def folder(self) -> None:
        """No folder of this machine."""
        return None

    @property
    def keeps_order(self) -> bool:
        """No: files have names."""
        return False

    @property
    def leaves_terminal_free(self) -> bool:
        return True

    def sweep(self) -> None:
        """Nothing to do: an object appears whole or not at all."""

    def begin(
        self, sources: Sequence[Source], settings: str, *, overwrite: bool, dry_run: bool = False
    ) -> Run:
        """Begin or continue the run of the output; with `dry_run` nothing is written. Raises UsageError for
        results of other settings."""
        from importlib.metadata import version as installed

        own = {identity(source.path) for source in sources}
        sizes = [source.entry.size if source.entry is not None else None for source in sources]
        for name, stored in self.known.items():  # what the run has from other inputs
            if name not in own and not overwrite and stored.settings == settings:
                sizes.append(stored.size)
        known = [size for size in sizes if size is not None]
        return self.records.begin(
            settings=settings,
            formats=self.formats,
            overwrite=overwrite,
            total=len(sizes),
            total_bytes=sum(known) if len(known) == len(sizes) else None,
            program=f"forescribe {installed('forescribe')}",
            dry_run=dry_run,
        )

    def names(self, source: str) -> list[str]:
        """The names of a recording's results, relative to the output."""
        return [f"{self.stems[source]}.{name}" for name in self.formats]

    def files(self, source: str) -> list[Location]:
        """The locations of a recording's results."""
        return [self.location / name for name in self.names(source)]

    def stands(self, source: Source) -> StoredRecord | None:
        """The record of a recording whose results need not be made again if its content is the same: of
        this run or one that it continues, with all formats, whose files exist."""
        run = self.records.joined
        stored = self.known.get(identity(source.path))
        if stored is None or source.path not in self.stems:
            return None
        files = self.names(source.path)
        there = set(files) <= set(stored.record.outputs) and self.existing.issuperset(files)
        fits = run is not None and there and stored.serves(run, frozenset(self.formats))
        return stored if fits else None

    def write(self, source: str, transcript: Transcript) -> list[str]:
        """Write the transcript in all formats; returns the names of the files. Every format is rendered
        before the first file appears. Raises OutputError and LocatedError."""
        texts = [
            (f"{self.stems[source]}.{f.name}", rendered(f, transcript, source))
            for f in formats(self.formats, self.rules)
        ]
        for name, text in texts:
            self.store.put(name, text.encode("utf-8", errors="replace"))
        return [name for name, _ in texts]

    def other_outputs(self, source: Source, mark: str | None, written: Iterable[str]) -> list[str]:
        """Results of the same content and settings in other formats, which an earlier run has written."""
        stored = self.known.get(identity(source.path))
        if stored is None or mark is None or stored.record.fingerprint != mark:
            return []
        new = set(written)
        suffixes = {PurePosixPath(name).suffix for name in new}
        return [
            name
            for name in stored.record.outputs
            if name not in new
            and name in self.existing
            and PurePosixPath(name).suffix not in suffixes
        ]


__all__ = ["RecordedNames", "RecordedOutputs"]
