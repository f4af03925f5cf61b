"""Where results go: a folder of this machine, stdout, or a location; checked before anything is loaded.

    outputs = plan_outputs(sources, "out", "txt,srt", stores=Stores())
    outputs.write("calls/a.mp3", transcript)             # out/a.txt, out/a.srt

`Outputs` are a folder, whose manifest knows what earlier runs wrote, or stdout. `RecordedOutputs` are for
object storage, or a folder of several machines: their records are created once (`asr.records`).

Every recording has names of its own, so that no result ever overwrites another or a recording. A recording
from a folder that was searched keeps its place below the output. A name is not chosen if the results of
another recording have it, in this run or by the records of an earlier one, or if a file of that name is a
recording itself.

Knows names, files and formats; writes no records: `results` writes files and records in their order.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from ..errors import OutputError, UsageError
from ..formats.files import TEMPORARY, formats, rendered, write
from ..formats.subtitles import PLAIN, LineRules
from ..formats.transcript import Transcript
from ..records.record_store import RecordFiles, RecordStore
from ..records.sources import STDIN, Source, identity
from ..records.stored_records import Run, StoredRecord
from ..storage.locations import Location, is_url
from ..storage.stores import Stores
from . import fingerprint
from .manifest import Manifest

STDOUT = "-"
"""The name of an output that is stdout."""

LONGEST = 249
"""Bytes of a stem: with its format, a name has at most 255 on the usual file systems. Keys in object
storage are longer."""


def plan_outputs(
    sources: Sequence[Source],
    where: str,
    names: str,
    *,
    stores: Stores,
    rules: LineRules = PLAIN,
    dry_run: bool = False,
) -> Outputs | RecordedOutputs:
    """See `Outputs.plan` and `RecordedOutputs.plan`; with `dry_run` nothing is created."""
    location = Location.parse(where) if is_url(where) else None
    if location is not None and location.scheme == "file":
        where, location = location.key, None
    if location is None:
        return Outputs.plan(sources, where, names, rules=rules, make_folder=not dry_run)
    return RecordedOutputs.plan(
        sources, location, names, rules=rules, stores=stores, check=not dry_run
    )


@dataclass(frozen=True)
class Outputs:
    """A folder, or stdout, and for every recording the path of its files there, without extension.

    In a folder, `manifest` knows what earlier runs wrote, and `owners` holds the recording that
    each name belonged to when the names were chosen."""

    folder: Path | None  # None: stdout
    formats: tuple[str, ...]
    stems: dict[str, str]
    rules: LineRules = PLAIN
    manifest: Manifest | None = None
    owners: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def plan(
        cls,
        sources: Sequence[Source],
        folder: str,
        names: str,
        *,
        rules: LineRules = PLAIN,
        make_folder: bool = True,
    ) -> Outputs:
        """Choose names for the results of `sources` in the formats `names`, and check everything
        that can be checked without a transcript; create the folder if `make_folder`.

        Raises UsageError for unknown formats, for several formats on stdout and for line rules without
        subtitles; OutputError for a folder that cannot be written.
        """
        chosen = _chosen_formats(names, rules)
        if folder == STDOUT:
            if len(chosen) > 1:
                raise UsageError("stdout takes one format: choose it, as in `-o - -f txt`")
            return cls(None, chosen, _choose_stems(sources, chosen), rules)
        path = Path(folder)
        if make_folder:
            _check_writable(path, folder)
        manifest = _manifest(path, folder)
        stems = _choose_stems(sources, chosen, manifest)
        owners = {stem: manifest.owner(stem) for stem in stems.values()}
        return cls(path, chosen, stems, rules, manifest, owners)

    @property
    def keeps_order(self) -> bool:
        """Whether results come in the order of the sources: on stdout only the order tells texts apart."""
        return self.folder is None

    @property
    def leaves_terminal_free(self) -> bool:
        """Whether the text is not printed to the terminal by itself."""
        return self.folder is not None or not sys.stdout.isatty()

    def files(self, source: str) -> list[Path]:
        """The files of a recording's results; none on stdout."""
        if self.folder is None:
            return []
        return [self.folder / f"{self.stems[source]}.{name}" for name in self.formats]

    def write(self, source: str, transcript: Transcript) -> list[Path]:
        """Write the transcript in all formats. In a folder, hold the manifest's lock from `settle`
        until the record is written. Raises OutputError."""
        if self.folder is None:
            _print(formats(self.formats, self.rules)[0].render(transcript))
            return []
        place, stem = os.path.split(self.stems[source])
        return write(transcript, self.folder / place, stem, self.formats, self.rules)

    def settle(self, source: str) -> None:
        """Give a recording another name if another process has taken its own since the run began."""
        manifest, stem = self.manifest, self.stems[source]
        if manifest is None:
            return
        if manifest.owner(stem) in (None, manifest.key(source), self.owners.get(stem)):
            return
        place, _ = os.path.split(stem)
        self.stems[source] = next(
            name
            for name in _choices(Source(source, place))[2:]  # those with a hash of the path
            if manifest.owner(name) in (None, manifest.key(source))
        )

    def sweep(self) -> None:
        """Remove files that a killed process left half written. Files are written under the manifest's
        lock, so those that exist while we hold it are abandoned."""
        if self.folder is None or self.manifest is None or not self.manifest.path.exists():
            return
        folders = {(self.folder / stem).parent for stem in self.stems.values()}
        with suppress(OSError), self.manifest.locked():
            for folder in folders:
                for path in folder.glob(TEMPORARY.format("*")):
                    path.unlink(missing_ok=True)


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
        chosen = _chosen_formats(names, rules)
        records = RecordStore.open(location, stores=stores)
        store = stores.at(location)
        if check:
            store.check_create()
        entries = store.list()
        known = dict(records.load(entries))
        existing = frozenset(entry.key for entry in entries)
        told = _RecordedNames(location.identity, known, existing)
        stems = _choose_stems(sources, chosen, told)
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


class _KnownNames(Protocol):
    """What earlier runs have written, as `asr.batch.manifest.Manifest` knows it."""

    @property
    def folder(self) -> str | Path: ...

    def key(self, path: str) -> str: ...

    def owner(self, stem: str) -> str | None: ...

    def stems_of(self, source: str) -> list[str]: ...

    def fingerprint(self, output: str) -> str | None: ...


class _RecordedNames:
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


def _choose_stems(
    sources: Sequence[Source], formats: Sequence[str], manifest: _KnownNames | None = None
) -> dict[str, str]:
    """File stems by source: the one its results have by the manifest, else the shortest one that no
    other recording could have.

    `a.mp3` and `a.wav` keep their extensions; `x/a.mp3` and `y/a.mp3` get a short hash of their paths.
    """
    choices = {source.path: _choices(source) for source in sources if source.error is None}
    kept = _kept(choices, manifest) if manifest else {}
    claims = Counter(
        name
        for path, names in choices.items()
        for name in ({kept[path]} if path in kept else set(names))
    )
    taken = _Taken(choices, formats, manifest)
    return {
        path: kept.get(path)
        or next((n for n in names if claims[n] == 1 and not taken(n, path)), names[-1])
        for path, names in choices.items()
    }


def _chosen_formats(names: str, rules: LineRules) -> tuple[str, ...]:
    """The formats by name. Raises UsageError for unknown ones, and for line rules without subtitles."""
    chosen = tuple(format_.name for format_ in formats(names))
    if not rules.plain and not {"srt", "vtt"} & set(chosen):
        raise UsageError("line rules and --highlight-words shape subtitles: add srt or vtt to -f")
    return chosen


def _choices(source: Source) -> tuple[str, ...]:
    """Possible stems, the best first; the last one is unique."""
    digest = hashlib.sha256(os.fsencode(source.path)).hexdigest()
    path = Path("stdin" if source.path == STDIN else source.path)
    short, unique = _marked(path.stem, digest[:8]), _marked(path.stem, digest)
    plain = (name if _size(name) <= LONGEST else short for name in (path.stem, path.name))
    return tuple(os.path.join(source.place, name) for name in (*plain, short, unique))


def _size(name: str) -> int:
    return len(os.fsencode(name))


def _marked(stem: str, mark: str) -> str:
    """The stem with a mark; of a long one, as many whole characters as there is room for."""
    room = LONGEST - len(mark) - 1
    if _size(stem) > room:
        stem = os.fsencode(stem)[:room].decode("utf-8", errors="ignore")
    return f"{stem}-{mark}"


def _kept(choices: dict[str, tuple[str, ...]], manifest: _KnownNames) -> dict[str, str]:
    """The names of earlier runs: a second `a` in the folder must not rename the first one."""
    kept = {}
    for path, names in choices.items():
        earlier = manifest.stems_of(manifest.key(path))
        name = next((stem for stem in earlier if stem in names), None)
        if name is not None:
            kept[path] = name
    return kept


class _Taken:
    """Whether the files of a name are another recording's results, or a recording itself."""

    def __init__(
        self,
        choices: dict[str, tuple[str, ...]],
        formats: Sequence[str],
        manifest: _KnownNames | None,
    ) -> None:
        self.formats, self.manifest = formats, manifest
        self.inputs = {identity(path) for path in choices}
        self.keys = {manifest.key(path) for path in choices} if manifest else set()

    def __call__(self, stem: str, path: str) -> bool:
        if self.manifest is None:
            return False
        files = (os.path.join(self.manifest.folder, f"{stem}.{name}") for name in self.formats)
        if any(file in self.inputs for file in files):
            return True
        owner = self.manifest.owner(stem)
        if owner in (None, self.manifest.key(path)):
            return False
        return owner in self.keys or not self._moved(stem, path)

    def _moved(self, stem: str, path: str) -> bool:
        """Whether the owner is this recording at another place: its bytes are the same."""
        assert self.manifest is not None
        content = fingerprint.content(path)
        return content is not None and any(
            known is not None and known.startswith(f"sha256:{content}+")
            for known in (self.manifest.fingerprint(f"{stem}.{name}") for name in self.formats)
        )


def _check_writable(path: Path, folder: str) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot write to the output folder {folder!r}: {error.strerror}; "
            "name another one with -o"
        ) from error


def _manifest(path: Path, folder: str) -> Manifest:
    try:
        return Manifest(path)
    except OSError as error:
        raise OutputError(
            f"cannot read the manifest in {folder!r}: {error.strerror}; "
            "name another output folder with -o"
        ) from error


def _print(text: str) -> None:
    """Write to stdout in UTF-8, as in files, whatever the locale is."""
    try:
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader has closed it: not an error of ours
        raise
    except OSError as error:
        raise OutputError(f"cannot write to stdout: {error.strerror}") from error
