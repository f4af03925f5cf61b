"""The records of an output in object storage: created once each, listed with few requests, merged at the end.

    records = RecordStore.open("s3://out/2026")
    run = records.begin(settings="5e77", formats=("json", "srt"), total=10_000)
    for source, stored in records.load().items(): ...     # what is done
    records.create(record, seen=records.generation(source))   # False: somebody else was first
    records.merge()                                           # manifest.jsonl

One process begins a run; any number may `join` it and create records, in threads or on other machines.
Who works on what is not known here: a recording that two workers transcribe leaves one record.

A `RecordLedger` is what a run that writes results needs of them, see `asr.batch.manifest.Ledger`.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from ..batch.manifest import NAME as MANIFEST
from ..batch.manifest import Ledger, Record
from ..errors import ForescribeError, UsageError
from ..storage.locations import Entry, Location
from ..storage.stores import Store, Stores
from .sources import Source, identity
from .stored_records import (
    CRASHES,
    DOUBLED,
    RECORDS,
    Run,
    StoredRecord,
    parsed,
    record_key,
    source_hash,
)

RUN = "_forescribe/run"
"""The beginning of the names of runs."""

READERS = 16
"""Records that are read at a time."""

MAX_CRASHES = 3
"""Workers that may die over a recording before it is given up."""


class RecordStore:
    """The records in a store. Methods may be called from several threads.

    Attributes:
        created: records that were made here.
        all_doubled: records of all workers that were refused because somebody else's was there, as of
            `load`.
        worker: written into records, to tell machines and processes apart.
    """

    def __init__(self, store: Store, where: str) -> None:
        self.store, self.where = store, where
        self.worker = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.created = self.all_doubled = 0
        self._run: Run | None = None
        self._known: dict[str, StoredRecord] = {}  # the latest one by source
        self._crashes: Counter[tuple[str, int]] = Counter()  # by hash and generation
        self._changing = threading.Lock()

    @classmethod
    def open(cls, output: str | Location, *, stores: Stores | None = None) -> RecordStore:
        """The records of an output. Nothing is requested yet. Raises UsageError."""
        location = Location.parse(output) if isinstance(output, str) else output
        if not location.writable:
            raise UsageError(f"{location} can only be read: name s3://, gs://, az:// or a folder")
        return cls((stores or Stores()).at(location), location.shown)

    # Runs

    @property
    def run(self) -> Run:
        """The run that was begun or joined."""
        assert self._run is not None, "begin() or join() comes first"
        return self._run

    @property
    def joined(self) -> Run | None:
        """The run that was begun or joined, if any."""
        return self._run

    def begin(
        self,
        *,
        settings: str,
        formats: Iterable[str],
        overwrite: bool = False,
        total: int | None = None,
        total_bytes: int | None = None,
        program: str = "",
        dry_run: bool = False,
    ) -> Run:
        """Begin a run, or continue the one in the output if it has the same settings.

        Further formats and other inputs continue it too. Raises UsageError if the output holds results
        of other settings, unless `overwrite`: then records made so far do not count any more. With
        `dry_run` nothing is written.
        """
        wanted = Run(
            settings,
            tuple(formats),
            total=total,
            total_bytes=total_bytes,
            started=time.time(),
            program=program,
        )
        while True:
            latest = self._latest_run()
            new = wanted if latest is None else self._following(latest, wanted, overwrite)
            if new is None or dry_run:
                self._run = new or latest
            elif self.store.create(_run_key(new.number), new.to_json()):
                self._run = new
            else:
                continue  # another process was first: follow its run
            return self.run

    def take_part(self, run: Run) -> None:
        """Take part in a run that another process has begun."""
        self._run = run

    def join(self) -> Run | None:
        """Take part in the run of the output, without changing it; None if there is none."""
        self._run = self._latest_run()
        return self._run

    def _following(self, latest: Run, wanted: Run, overwrite: bool) -> Run | None:
        try:
            return latest.followed_by(wanted, overwrite=overwrite)
        except UsageError as error:
            raise UsageError(f"{self.where}: {error}") from None

    def _latest_run(self) -> Run | None:
        found, number = None, 1
        while True:
            try:
                data = self.store.read(_run_key(number))
            except FileNotFoundError:
                return found
            found = Run.from_json(data, f"{self.where}: {_run_key(number)}")
            number += 1

    # Records

    def load(self, entries: Iterable[Entry] | None = None) -> Mapping[str, StoredRecord]:
        """Read all records: the latest one by source, whatever run it is of. `entries` is a listing of the
        output, if there is one already.

        One listing, one request for `manifest.jsonl`, and one for every record that was made since that
        was merged or loaded.
        """
        latest: dict[str, int] = {}
        crashes: Counter[tuple[str, int]] = Counter()
        doubled = 0
        for entry in self.store.list("_forescribe") if entries is None else entries:
            folder, _, name = entry.key.rpartition("/")
            doubled += f"{folder}/" == DOUBLED
            if f"{folder}/" == CRASHES:
                digest, generation, _ = (*name.split("."), "", "")[:3]
                crashes[digest, int(generation) if generation.isdigit() else 0] += 1
            elif f"{folder}/" == RECORDS and (found := parsed(name)):
                latest[found[0]] = max(found[1], latest.get(found[0], 0))
        known = {source_hash(s.source): s for s in (*self._merged(), *self._known.values())}
        missing = [
            (digest, generation)
            for digest, generation in latest.items()
            if digest not in known or known[digest].generation < generation
        ]
        with ThreadPoolExecutor(READERS, "records") as pool:
            fresh = [stored for stored in pool.map(self._read_hash, missing) if stored is not None]
        with self._changing:
            self._crashes, self.all_doubled = crashes, doubled
            for stored in (*known.values(), *fresh):
                self._remember(stored)
            return dict(self._known)

    def known(self, source: str) -> StoredRecord | None:
        """The latest record of a recording that is known here."""
        return self._known.get(source)

    def adopt(self, stored: StoredRecord) -> None:
        """Know a record that another process has made for this run, as if it was made here."""
        with self._changing:
            self.created += 1
            self._remember(stored)

    def generation(self, source: str) -> int:
        """The generation of the latest record known here; 0 without one. A worker that was told to
        transcribe passes it on to `create`."""
        known = self._known.get(source)
        return known.generation if known else 0

    def create(
        self,
        record: Record,
        *,
        seen: int = 0,
        version: str | None = None,
        worker: str | None = None,
    ) -> bool:
        """Store the record of a recording, after its results. One request, if nobody else is there.

        Args:
            record: its `source` names the recording.
            seen: the generation of the record that was known when the work began: this one takes its place.
            version: of the recording, see `Record`.
            worker: which of this process's fleet has transcribed it; None if it has none.

        Returns:
            False if somebody has recorded the recording since. A success takes the place of a failure;
            else ours is dropped and leaves a mark.
        """
        stored = StoredRecord(
            replace(record, attempt=max(record.attempt, seen + 1), version=version),
            self.run.settings,
            self.run.number,
            seen + 1,
            self.worker if worker is None else f"{self.worker}/{worker}",
            round(time.time(), 3),
            secrets.token_hex(8),
        )
        while not self.store.create(stored.key, stored.to_json()):
            other = self._read_hash((source_hash(record.source), stored.generation))
            if other is not None and not self._gives_way(other, stored):
                self._count_doubled(stored)
                with self._changing:
                    self._remember(other)
                return False
            stored = replace(stored, generation=stored.generation + 1)
        with self._changing:
            self.created += 1
            self._remember(stored)
        return True

    def _count_doubled(self, stored: StoredRecord) -> None:
        """Leave a mark, so that `RunStatus` can tell how much work was done twice."""
        with suppress(ForescribeError):
            self.store.create(f"{DOUBLED}{source_hash(stored.source)}.{stored.token}", b"")

    def _gives_way(self, old: StoredRecord, new: StoredRecord) -> bool:
        """Whether a record that was made meanwhile is replaced by ours."""
        if not old.counts_in(self.run):
            return True
        return new.record.status == "succeeded" and old.record.status != "succeeded"

    # Crashes

    @property
    def all_crashes(self) -> int:
        """Workers that died over recordings, as of `load`; one that had several counts for each."""
        return self._crashes.total()

    def crashes(self, source: str) -> int:
        """How many workers have died over a recording since its latest record, as of `load`."""
        return self._crashes[source_hash(source), self.generation(source)]

    def count_crash(self, source: str) -> int:
        """Count that a worker died while it had this recording, and return how many have. Called by who
        sees it, such as the driver of a cluster; after `MAX_CRASHES` it is given up."""
        mark = source_hash(source), self.generation(source)
        name = f"{CRASHES}{mark[0]}.{mark[1]}.{secrets.token_hex(4)}"
        self.store.create(name, (json.dumps({"worker": self.worker, "at": time.time()})).encode())
        with self._changing:
            self._crashes[mark] += 1
            return self._crashes[mark]

    # The merged manifest

    def merge(self) -> int:
        """Write `manifest.jsonl`: the latest record of every recording, one per line, in one piece. Returns
        their number. Records are not touched."""
        records = self.load()
        lines = b"".join(records[source].to_json() for source in sorted(records))
        self.store.put(MANIFEST, lines)
        return len(records)

    def _merged(self) -> list[StoredRecord]:
        try:
            data = self.store.read(MANIFEST)
        except FileNotFoundError:
            return []
        found = []
        for line in data.split(b"\n"):
            with suppress(ValueError, KeyError, TypeError, AttributeError):
                values = json.loads(line)
                if "token" in values:  # not a line of a run without records
                    found.append(StoredRecord.from_dict(values))
        return found

    def _read_hash(self, name: tuple[str, int]) -> StoredRecord | None:
        try:
            return StoredRecord.from_dict(json.loads(self.store.read(record_key(*name))))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            return None  # damaged: as if there were none; the next record takes its place

    def _remember(self, stored: StoredRecord) -> None:
        known = self._known.get(stored.source)
        if known is None or known.generation <= stored.generation:
            self._known[stored.source] = stored


class RecordLedger(Ledger):
    """The ledger of an output whose records are created once. Any thread may write; if somebody else has
    recorded a recording meanwhile, our record is dropped: equal settings give equal files.

    Args:
        records: of the output, whose run is begun or joined before results are written.
        folder: the output, as `identity` has it.
        known: the latest records when the run was planned.
        existing: the files that there were then.
    """

    in_background = True

    def __init__(
        self,
        records: RecordStore,
        folder: str,
        known: Mapping[str, StoredRecord],
        existing: frozenset[str],
    ) -> None:
        self.records, self.folder, self.known, self.existing = records, folder, known, existing
        self._outputs = {o: stored for stored in known.values() for o in stored.record.outputs}
        self._stems = {os.path.splitext(o)[0]: stored for o, stored in self._outputs.items()}

    def key(self, path: str) -> str:
        return identity(path)

    def fingerprint(self, output: str) -> str | None:
        stored = self._outputs.get(output)
        return stored.record.fingerprint if stored else None

    def owner(self, stem: str) -> str | None:
        stored = self._stems.get(stem)
        if stored and any(output in self.existing for output in stored.record.outputs):
            return stored.source
        return None

    def stems_of(self, source: str) -> list[str]:
        stored = self.known.get(source)
        outputs = stored.record.outputs if stored else ()
        stems = dict.fromkeys(os.path.splitext(output)[0] for output in outputs)
        return [stem for stem in stems if self.owner(stem) == source]

    def begin(
        self,
        sources: Sequence[Source],
        settings: str,
        formats: tuple[str, ...],
        *,
        overwrite: bool,
        dry_run: bool,
    ) -> None:
        """Raises UsageError for results of other settings."""
        from importlib.metadata import version as installed

        own = {identity(source.path) for source in sources}
        sizes = [source.entry.size if source.entry is not None else None for source in sources]
        for name, stored in self.known.items():  # what the run has from other inputs
            if name not in own and not overwrite and stored.settings == settings:
                sizes.append(stored.size)
        known = [size for size in sizes if size is not None]
        self.records.begin(
            settings=settings,
            formats=formats,
            overwrite=overwrite,
            total=len(sizes),
            total_bytes=sum(known) if len(known) == len(sizes) else None,
            program=f"forescribe {installed('forescribe')}",
            dry_run=dry_run,
        )

    def stands(self, path: str, outputs: Sequence[str], settings: str) -> Record | None:
        """Of this run, which has these settings, or one that it continues."""
        run, stored = self.records.joined, self.known.get(identity(path))
        if run is None or stored is None or not self.existing.issuperset(outputs):
            return None
        done = stored.record.status == "succeeded" and stored.counts_in(run)
        return stored.record if done and set(outputs) <= set(stored.record.outputs) else None

    def record(self, path: str, **fields: Any) -> Record:
        key = identity(path)
        stored = self.known.get(key)
        attempt = stored.record.attempt if stored else 0
        attempt += fields["status"] in ("succeeded", "failed")
        return Record(path, source=key, attempt=attempt, **fields)

    def add(
        self, record: Record, *, version: str | None = None, worker: str | None = None
    ) -> Record:
        """With the results in other formats that an earlier run has made of the same content."""
        stored = self.known.get(record.source)
        if record.fingerprint and stored and stored.record.fingerprint == record.fingerprint:
            record = replace(record, outputs=(*record.outputs, *self._others(stored, record)))
        seen = stored.generation if stored else 0
        self.records.create(record, seen=seen, version=version, worker=worker)
        return record

    def close(self) -> None:
        """Merge the records, for readers who want one file; they are the truth without it."""
        if self.records.created:
            with suppress(ForescribeError):
                self.records.merge()

    def _others(self, stored: StoredRecord, record: Record) -> list[str]:
        suffixes = {PurePosixPath(name).suffix for name in record.outputs}
        return [
            name
            for name in stored.record.outputs
            if name in self.existing and PurePosixPath(name).suffix not in suffixes
        ]


def _run_key(number: int) -> str:
    return f"{RUN}{'' if number == 1 else f'.{number}'}.json"
