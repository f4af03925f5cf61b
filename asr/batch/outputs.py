"""Where results go: a folder, stdout, or object storage; checked before anything is loaded.

Every recording has names of its own, so that no result ever overwrites another or a recording. A recording
from a folder that was searched keeps its place below the output. A name is not chosen if the results of
another recording have it, in this run or by the records of an earlier one, or if a file of that name is a
recording itself. A `Writer` puts a recording's files in place first, and its record then.

Knows names, files and formats; nothing of how recordings are transcribed.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..errors import ForescribeError, OutputError, UsageError
from ..formats.files import formats, rendered
from ..formats.subtitles import PLAIN, LineRules
from ..formats.transcript import UNREADABLE, Transcript
from ..storage.locations import STDIN, Location, Source, identity, is_url
from ..storage.stores import Stores
from .destinations import Bucket, Folder, Stdout
from .ledger import KEPT, Destination, Ledger, Record, content_hash, file_version, result_fields

if TYPE_CHECKING:
    from ..decode.results import Outcome

STDOUT = "-"
"""The name of an output that is stdout."""

OTHERS = "results of other options or another model are replaced"
OTHER_JSON = "the JSON there is of other options or another model"
CHANGED = "the recording has changed"
LACKING = "a format is missing, and there is no JSON to write it from"
"""Why earlier results of a recording are not used."""

LONGEST = 249
"""Bytes of a stem: with its format, a name has at most 255 on the usual file systems. Keys in object
storage are longer."""


@dataclass(frozen=True)
class Outputs:
    """Names and formats of one run's results."""

    where: Path | Location | None  # the folder or the location; None for stdout
    ledger: Ledger
    formats: tuple[str, ...]
    stems: dict[str, str]  # by recording the path of its files below `where`, without extension
    rules: LineRules = PLAIN
    owners: Mapping[str, str | None] = field(default_factory=dict)  # of stems as they were chosen

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
        chosen = tuple(format_.name for format_ in formats(names))
        if not rules.plain and not {"srt", "vtt"} & set(chosen):
            raise UsageError(
                "line rules and --highlight-words shape subtitles: add srt or vtt to -f"
            )
        place: Path | Location | None = None
        destination: Destination = Stdout()
        location = Location.parse(where) if is_url(where) else None
        if where == STDOUT:
            if len(chosen) > 1:
                raise UsageError("stdout takes one format: choose it, as in `-o - -f txt`")
        elif location is not None and location.scheme != "file":
            place = location
            destination = Bucket(location, stores or Stores(), dry_run=dry_run)
        else:
            place = Path(where if location is None else location.key)
            destination = Folder(place, dry_run=dry_run)
        ledger = Ledger(destination)
        stems = _choose_stems(sources, chosen, ledger, place)
        owners = {stem: ledger.owner(stem) for stem in stems.values()}
        return cls(place, ledger, chosen, stems, rules, owners)

    @property
    def folder(self) -> Path | None:
        """The folder of this machine; None for stdout and object storage."""
        return self.where if isinstance(self.where, Path) else None

    def names(self, source: str) -> list[str]:
        """The names of a recording's results, relative to the output."""
        return [f"{self.stems[source]}.{name}" for name in self.formats]

    def files(self, source: Source) -> list[Path | Location]:
        """The files of a recording's results; none on stdout, and for one that cannot be read."""
        if self.where is None or source.error is not None:
            return []
        return [self.where / name for name in self.names(source.path)]

    def json(self, source: str) -> str:
        """The name of a recording's JSON, from which other formats can be written."""
        return f"{self.stems[source]}.json"

    def stands(self, source: Source, settings: str) -> Record | None:
        """The record of results that need not be decoded again if the recording's content is the same: with
        these settings, in all formats or in a JSON that can be read."""
        if source.path not in self.stems:
            return None
        path = source.path
        if found := self.ledger.stands(path, self.names(path), settings):
            return found
        if (self.ledger.hash(self.json(path)) or "").startswith(KEPT):
            return None  # of other content, or of other settings
        if found := self.ledger.stands(path, [self.json(path)], settings):
            with suppress(ForescribeError):
                self.transcript(path)
                return found
        return None

    def transcript(self, source: str) -> Transcript:
        """What a recording's JSON holds. Raises OutputError for one that cannot be read, LocatedError."""
        name = self.json(source)
        try:
            return Transcript.read(self.ledger.destination.read(name))
        except (OSError, *UNREADABLE) as error:
            raise OutputError(f"{name} is no transcript any more: --overwrite") from error

    def write(
        self, source: str, transcript: Transcript, mark: str | None = None, *, anew: bool = False
    ) -> Written:
        """Write the transcript in the formats that do not stand with this fingerprint, and keep those that
        were edited; with `anew` in all. Every format is rendered before the first file appears, and
        every file appears whole. Hold the ledger's lock from `settle` until the record is written. Raises
        OutputError and LocatedError."""
        ledger, names = self.ledger, self.names(source)
        kept = () if anew else tuple(filter(ledger.edited, names))
        texts = {
            name: rendered(format_, transcript, self.stems[source])
            for name, format_ in zip(names, formats(self.formats, self.rules), strict=True)
            if name not in kept and (anew or not ledger.holds(name, mark))
        }
        ledger.replacing(source, texts, mark)
        for name, text in texts.items():
            ledger.destination.put(name, text)
        hashes = {name: ledger.hash(name) for name in names}
        hashes |= {name: ledger.kept_hash(name, mark) for name in kept}
        hashes |= {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
        return Written(tuple(names), kept, {name: own for name, own in hashes.items() if own})

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


class Written(NamedTuple):
    """The files of a recording, those of them that were edited and kept, and their hashes."""

    names: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    hashes: Mapping[str, str] = {}


@dataclass(frozen=True)
class RecordingResult:
    """What became of a recording: its record, and its transcript or the error. `files` are paths, or
    locations in object storage; those of a success without a transcript were written from its JSON. `kept`
    names those that somebody has edited."""

    record: Record
    transcript: Transcript | None = None
    error: ForescribeError | None = None
    files: tuple[Path | Location, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Writer:
    """Writes the results and records of one output, as a `Batch` needs them. Its methods raise nothing: an
    error in writing becomes the result's error. `settings` is the hash of everything that can change a word.
    """

    outputs: Outputs
    settings: str
    overwrite: bool = False

    def is_done(self, source: Source) -> bool:
        """Whether its results hold what would be written again, as far as is known without fetching it. A
        file is read only if its size or time differ."""
        known = self.outputs.stands(source, self.settings)
        return known is not None and self._is_of(known, source)

    def lacks(self, source: Source) -> bool:
        """Whether formats of a recording that is done are still to be written from its JSON."""
        names = self.outputs.names(source.path)
        return self.outputs.ledger.stands(source.path, names, self.settings) is None

    def is_unchanged(self, source: Source, content: str | None) -> bool:
        """Whether its results were made from bytes with this hash, with the same settings."""
        known = self.outputs.stands(source, self.settings)
        return bool(content and known and known.fingerprint == self._mark(content))

    def finished(
        self, source: Source, outcome: Outcome, content: str | None, version: str | None
    ) -> RecordingResult:
        """Write the files and the record of an outcome. `content` is the hash of the recording's bytes, None
        if it cannot be resumed. Called from several threads if the destination is `in_background`."""
        transcript, error = outcome.transcript, outcome.error
        mark = self._mark(content) if content else None
        written = Written()
        try:
            with self.outputs.ledger.locked():
                if transcript is not None and error is None:
                    try:
                        self.outputs.settle(source.path)
                        made = self.outputs.write(
                            source.path, transcript, mark, anew=self.overwrite
                        )
                        written = made if self.outputs.where is not None else Written()
                    except ForescribeError as refused:
                        error = refused
                fields = result_fields(transcript, error, outcome.wall_s)
                if error is None:
                    fields |= {"outputs": written.names, "hashes": written.hashes}
                    fields |= {"fingerprint": mark, "version": version}
                record = self.outputs.ledger.add(self.outputs.ledger.record(source.path, **fields))
        except ForescribeError as refused:  # without a record, the next run does it again
            error = error or refused
            fields = result_fields(transcript, error, outcome.wall_s)
            record = self.outputs.ledger.record(source.path, **fields)
        files = self.outputs.files(source) if written.names and error is None else []
        return RecordingResult(record, transcript, error, tuple(files), written.kept)

    def failed(self, source: Source, error: ForescribeError) -> RecordingResult:
        """Write the record of a recording that was not transcribed."""
        record = self.outputs.ledger.record(source.path, **result_fields(None, error, 0.0))
        with suppress(ForescribeError), self.outputs.ledger.locked():
            record = self.outputs.ledger.add(record)
        return RecordingResult(record, None, error)

    def confirmed(self, source: Source) -> RecordingResult:
        """The result of a recording that was found unchanged after it was fetched: its record gets the new
        version."""
        known = self.outputs.stands(source, self.settings)
        if known is not None:
            with suppress(ForescribeError), self.outputs.ledger.locked():  # else fetched again
                self.outputs.ledger.add(replace(known, version=source.version))
        return self.skipped(source)

    def skipped(self, source: Source) -> RecordingResult:
        """The result of a recording that is up to date. Formats that it lacks are written from its JSON."""
        outputs, files = self.outputs, tuple(self.outputs.files(source))
        known = outputs.stands(source, self.settings)
        if known is None or not self.lacks(source):
            record = outputs.ledger.record(source.path, status="skipped")
            return RecordingResult(record, files=files)
        try:
            with outputs.ledger.locked():
                transcript = outputs.transcript(source.path)
                names, kept, hashes = outputs.write(source.path, transcript, known.fingerprint)
                record = outputs.ledger.add(replace(known, outputs=names, hashes=hashes))
        except ForescribeError as error:
            return self.failed(source, error)
        return RecordingResult(record, files=files, kept=kept)

    def earlier(self, source: Source) -> str | None:
        """Why earlier results of a recording are not used; None where there are none."""
        if source.path not in self.outputs.stems:
            return None
        ledger, path = self.outputs.ledger, source.path
        names = dict.fromkeys([*self.outputs.names(path), self.outputs.json(path)])
        there = [name for name in names if ledger.holds(name, ledger.fingerprint(name))]
        ours = filter(None, (ledger.stands(path, [name], self.settings) for name in there))
        known = next(ours, None)
        if known is not None:
            return LACKING if self._is_of(known, source) else CHANGED
        if not there:
            return None
        return OTHERS if there[0] in self.outputs.names(path) else OTHER_JSON

    def cancelled(self, sources: Iterable[Source]) -> list[RecordingResult]:
        """Results of recordings that will not be transcribed in this run."""
        ledger = self.outputs.ledger
        records = [ledger.record(source.path, status="cancelled") for source in sources]
        if not ledger.destination.in_background:  # there it is a request for each
            with suppress(ForescribeError), ledger.locked():
                for record in records:
                    ledger.destination.keep(record)
        return [RecordingResult(record) for record in records]

    def _is_of(self, known: Record, source: Source) -> bool:
        """Whether a record is of this recording as it is now, as far as is known without fetching it."""
        if source.location is not None:
            return source.version is not None and known.version == source.version
        version = file_version(source.path)
        if version is None or known.version == version:
            return version is not None
        content = content_hash(source.path)
        return content is not None and known.fingerprint == self._mark(content)

    def _mark(self, content: str) -> str:
        return f"sha256:{content}+{self.settings}"


def _choose_stems(
    sources: Sequence[Source], formats: Sequence[str], ledger: Ledger, where: Path | Location | None
) -> dict[str, str]:
    """File stems by source: the one its results have by the ledger, else the shortest one that no
    other recording could have.

    `a.mp3` and `a.wav` keep their extensions; `x/a.mp3` and `y/a.mp3` get a short hash of their paths.
    """
    choices = {source.path: _choices(source) for source in sources if source.error is None}
    inputs, keys = set(map(identity, choices)), set(map(ledger.key, choices))
    # The names of earlier runs: a second `a` in the folder must not rename the first one.
    kept: dict[str, str | None] = {}
    claims = Counter[str]()
    for path, names in choices.items():
        earlier = next(filter(names.__contains__, ledger.stems_of(ledger.key(path))), None)
        kept[path] = earlier
        claims.update(set(names) if earlier is None else (earlier,))

    def taken(stem: str, path: str) -> bool:
        """Whether the files of a name are another recording's results, or a recording itself."""
        if where is None:
            return False
        files = [f"{stem}.{name}" for name in formats]
        if not inputs.isdisjoint(identity(str(where / file)) for file in files):
            return True
        owner = ledger.owner(stem)
        if owner in (None, ledger.key(path)):
            return False
        if owner in keys:
            return True
        # Not if the owner is this recording at another place: its bytes are the same.
        content = content_hash(path)
        known = map(ledger.fingerprint, files)
        return content is None or not any(f and f.startswith(f"sha256:{content}+") for f in known)

    stems = {}
    for path, names in choices.items():
        free = (name for name in names if claims[name] == 1 and not taken(name, path))
        stems[path] = kept[path] or next(free, names[-1])
    return stems


def _choices(source: Source) -> tuple[str, ...]:
    """Possible stems, the best first; the last one is unique. Of a long one, as many whole characters stay as
    there is room for."""
    path = Path("stdin" if source.path == STDIN else source.path)
    digest = hashlib.sha256(os.fsencode(source.path)).hexdigest()
    marked = []
    for mark in (digest[:8], digest):
        stem, room = os.fsencode(path.stem), LONGEST - len(mark) - 1
        kept = path.stem if len(stem) <= room else stem[:room].decode("utf-8", errors="ignore")
        marked.append(f"{kept}-{mark}")
    plain = (n if len(os.fsencode(n)) <= LONGEST else marked[0] for n in (path.stem, path.name))
    return tuple(os.path.join(source.place, name) for name in (*plain, *marked))
