"""Where results go: a folder, stdout, or object storage; checked before anything is loaded.

    outputs = Outputs.plan(sources, "out", "txt,srt")
    outputs.write("calls/a.mp3", transcript)             # out/a.txt, out/a.srt

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import OutputError, UsageError, output_errors
from ..formats.files import formats, put, rendered
from ..formats.subtitles import PLAIN, LineRules
from ..formats.transcript import Transcript
from ..records.record_store import RecordLedger, RecordStore
from ..records.sources import STDIN, Source, identity
from ..storage.locations import Location, is_url
from ..storage.stores import Store, Stores
from . import fingerprint
from .manifest import Ledger, Manifest, Record

STDOUT = "-"
"""The name of an output that is stdout."""

LONGEST = 249
"""Bytes of a stem: with its format, a name has at most 255 on the usual file systems. Keys in object
storage are longer."""


@dataclass(frozen=True)
class Outputs:
    """Names and formats of one run's results.

    Attributes:
        where: the folder or the location; None for stdout.
        store: what the files are written to.
        ledger: knows what earlier runs wrote: for a folder its manifest, for object storage records that
            are created once (`asr.records`), for stdout nothing.
        stems: for every recording the path of its files below `where`, without extension.
        owners: the recording that each name belonged to when the names were chosen.
    """

    where: Path | Location | None
    store: Folder | Store | Stdout
    ledger: Ledger
    formats: tuple[str, ...]
    stems: dict[str, str]
    rules: LineRules = PLAIN
    owners: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def plan(
        cls,
        sources: Sequence[Source],
        where: str,
        names: str,
        *,
        stores: Stores | None = None,
        rules: LineRules = PLAIN,
        dry_run: bool = False,
    ) -> Outputs:
        """Choose names for the results of `sources` in the formats `names`, and check everything that can be
        checked without a transcript; create the folder. With `dry_run` nothing is created.

        Raises UsageError for unknown formats, for several formats on stdout, for line rules without subtitles
        and for locations that can only be read; OutputError for a folder that cannot be written; LocatedError
        for stores.
        """
        chosen = _chosen_formats(names, rules)
        if where == STDOUT and len(chosen) > 1:
            raise UsageError("stdout takes one format: choose it, as in `-o - -f txt`")
        place, store, ledger = _opened(where, stores or Stores(), dry_run=dry_run)
        stems = _choose_stems(sources, chosen, ledger)
        owners = {stem: ledger.owner(stem) for stem in stems.values()}
        return cls(place, store, ledger, chosen, stems, rules, owners)

    @property
    def folder(self) -> Path | None:
        """The folder of this machine; None for stdout and object storage."""
        return self.where if isinstance(self.where, Path) else None

    @property
    def keeps_order(self) -> bool:
        """Whether results come in the order of the sources: on stdout only the order tells texts apart."""
        return self.where is None

    @property
    def leaves_terminal_free(self) -> bool:
        """Whether the text is not printed to the terminal by itself."""
        return self.where is not None or not sys.stdout.isatty()

    def begin(
        self, sources: Sequence[Source], settings: str, *, overwrite: bool, dry_run: bool = False
    ) -> None:
        """Begin or continue the run of the output; with `dry_run` nothing is written. Raises UsageError for
        results of other settings, where they cannot be beside those of this run."""
        self.ledger.begin(sources, settings, self.formats, overwrite=overwrite, dry_run=dry_run)

    def names(self, source: str) -> list[str]:
        """The names of a recording's results, relative to the output."""
        return [f"{self.stems[source]}.{name}" for name in self.formats]

    def files(self, source: str) -> list[Path | Location]:
        """The files of a recording's results; none on stdout."""
        where = self.where
        return [] if where is None else [where / name for name in self.names(source)]

    def stands(self, source: Source, settings: str) -> Record | None:
        """The record of results that need not be made again if the recording's content is the same: with
        these settings, in all formats, whose files exist."""
        if source.path not in self.stems:
            return None
        return self.ledger.stands(source.path, self.names(source.path), settings)

    def write(self, source: str, transcript: Transcript) -> None:
        """Write the transcript in all formats. Every format is rendered before the first file appears, and
        every file appears whole. Hold the ledger's lock from `settle` until the record is written. Raises
        OutputError and LocatedError."""
        chosen = formats(self.formats, self.rules)
        texts = [rendered(f, transcript, self.stems[source]) for f in chosen]
        for name, text in zip(self.names(source), texts, strict=True):
            # One odd character, as a lone surrogate, must not cost the transcript.
            self.store.put(name, text.encode("utf-8", errors="replace"))

    def settle(self, source: str) -> None:
        """Give a recording another name if another process has taken its own since the run began."""
        ledger, stem = self.ledger, self.stems[source]
        if ledger.owner(stem) in (None, ledger.key(source), self.owners.get(stem)):
            return
        place, _ = os.path.split(stem)
        self.stems[source] = next(
            name
            for name in _choices(Source(source, place))[2:]  # those with a hash of the path
            if ledger.owner(name) in (None, ledger.key(source))
        )

    def sweep(self) -> None:
        """Remove files that a killed process left half written."""
        self.ledger.sweep(self.stems.values())


class Folder:
    """Files below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, key: str, data: bytes) -> None:
        """Write a file, replacing another one at once. Raises OutputError."""
        path = self.folder / key
        with output_errors(f"{path.stem!r} to {str(path.parent)!r}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            put(path, data)


class Stdout:
    """Text, printed in UTF-8 as in files, whatever the locale is."""

    def put(self, key: str, data: bytes) -> None:
        """Raises OutputError, and BrokenPipeError if the reader has closed it: no error of ours."""
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"cannot write to stdout: {error.strerror}") from error


def _opened(
    where: str, stores: Stores, *, dry_run: bool
) -> tuple[Path | Location | None, Folder | Store | Stdout, Ledger]:
    """What `where` names, checked: see `Outputs`."""
    if where == STDOUT:
        return None, Stdout(), Ledger()
    location = Location.parse(where) if is_url(where) else None
    if location is not None and location.scheme != "file":
        records = RecordStore.open(location, stores=stores)
        if not dry_run:
            records.store.check_create()
        return location, records.store, _planned(records, location.identity)
    folder = where if location is None else location.key
    path = Path(folder)
    if not dry_run:
        _check_writable(path, folder)
    return path, Folder(path), _manifest(path, folder)


def _choose_stems(
    sources: Sequence[Source], formats: Sequence[str], ledger: Ledger
) -> dict[str, str]:
    """File stems by source: the one its results have by the ledger, else the shortest one that no
    other recording could have.

    `a.mp3` and `a.wav` keep their extensions; `x/a.mp3` and `y/a.mp3` get a short hash of their paths.
    """
    choices = {source.path: _choices(source) for source in sources if source.error is None}
    kept = _kept(choices, ledger)
    claims = Counter(
        name
        for path, names in choices.items()
        for name in ({kept[path]} if path in kept else set(names))
    )
    taken = _Taken(choices, formats, ledger)
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


def _kept(choices: dict[str, tuple[str, ...]], ledger: Ledger) -> dict[str, str]:
    """The names of earlier runs: a second `a` in the folder must not rename the first one."""
    kept = {}
    for path, names in choices.items():
        earlier = ledger.stems_of(ledger.key(path))
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
        ledger: Ledger,
    ) -> None:
        self.formats, self.ledger = formats, ledger
        self.inputs = {identity(path) for path in choices}
        self.keys = {ledger.key(path) for path in choices}

    def __call__(self, stem: str, path: str) -> bool:
        if not self.ledger.folder:
            return False
        files = (os.path.join(self.ledger.folder, f"{stem}.{name}") for name in self.formats)
        if any(file in self.inputs for file in files):
            return True
        owner = self.ledger.owner(stem)
        if owner in (None, self.ledger.key(path)):
            return False
        return owner in self.keys or not self._moved(stem, path)

    def _moved(self, stem: str, path: str) -> bool:
        """Whether the owner is this recording at another place: its bytes are the same."""
        content = fingerprint.content(path)
        return content is not None and any(
            known is not None and known.startswith(f"sha256:{content}+")
            for known in (self.ledger.fingerprint(f"{stem}.{name}") for name in self.formats)
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


def _planned(records: RecordStore, folder: str) -> RecordLedger:
    """The ledger of an output as its records and files are now."""
    entries = records.store.list()
    return RecordLedger(
        records, folder, dict(records.load(entries)), frozenset(entry.key for entry in entries)
    )
