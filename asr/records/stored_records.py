"""Records and runs as they are stored, below `_forescribe/` of an output.

    stored = StoredRecord(record, settings="5e77", run=1, generation=1)
    StoredRecord.from_dict(json.loads(stored.to_json()))

A record says what became of a recording, with what, by whom and when. The first one of a recording is
`records/<hash>.json`. A later one that takes its place, after a failure, a change or with another format, is
`<hash>.2.json`, and so on: nothing is ever replaced, so creating a file is all that two writers need to be
told apart.

A run (`run.json`) says what the results are made with. It is created once and never changed; a further one
(`run.2.json`) takes its place. Records of runs before `since` do not count any more, so nothing has to be
deleted to start again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..batch.manifest import Record
from ..errors import UsageError
from ..formats.transcript_parts import Json

VERSION = 1
"""Of the layout of `_forescribe`; a newer one is refused."""

RECORDS = "_forescribe/records/"
CRASHES = "_forescribe/crashes/"
DOUBLED = "_forescribe/doubled/"
"""Folders of records, of marks that a worker died over a recording, and of marks that one was done twice."""

_NAME = re.compile(r"([0-9a-f]{32})(?:\.(\d+))?\.json")

_FIELDS = tuple(asdict(Record("", "failed")))
_CIRCUMSTANCES = ("settings", "run", "generation", "worker", "at", "token")
"""The keys of a stored record: those of the record, and those of `StoredRecord`."""

_TEXTS = ("path", "status", "source", "settings", "worker", "token")
_OPTIONAL_TEXTS = ("code", "message", "language", "fingerprint", "version")
_COUNTS = ("attempt", "run", "generation")
_NUMBERS = ("wall_s", "at")
_OPTIONAL_NUMBERS = ("audio_s", "rtfx", "acceptance_rate", "mean_acceptance_length")
_SUMMED = ("wall_s", "at", "audio_s")
_LISTS = ("warnings", "outputs")
"""Keys by the kind of their values."""


@dataclass(frozen=True)
class StoredRecord:
    """A record with its circumstances. `at` is in seconds since 1970 by the writer's clock, and `token` is
    random, so that a writer recognises its own record after a lost reply."""

    record: Record
    settings: str
    run: int
    generation: int = 1
    worker: str = ""
    at: float = 0.0
    token: str = field(default="")

    @property
    def source(self) -> str:
        return self.record.source

    @property
    def version(self) -> str | None:
        """Tells contents of the source apart, see `Record`."""
        return self.record.version

    @property
    def size(self) -> int | None:
        """The bytes of the source, from its version."""
        size = (self.version or "").partition(":")[0]
        return int(size) if size.isdigit() else None

    @property
    def key(self) -> str:
        return record_key(source_hash(self.source), self.generation)

    def counts_in(self, run: Run) -> bool:
        """Whether it belongs to `run` or to one that `run` continues."""
        return self.run >= run.since and self.settings == run.settings

    def to_dict(self) -> dict[str, Json]:
        values = {name: getattr(self, name) for name in _CIRCUMSTANCES}
        return self.record.to_dict() | values

    def to_json(self) -> bytes:
        # In ASCII: a path may hold bytes that are no text in any encoding.
        return (json.dumps(self.to_dict()) + "\n").encode()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StoredRecord:
        """Raises KeyError, TypeError or ValueError for what is no record."""
        fields = {name: values[name] for name in _FIELDS if name in values}
        fields |= {name: tuple(fields.get(name) or ()) for name in ("warnings", "outputs")}
        circumstances = {name: values[name] for name in _CIRCUMSTANCES if name in values}
        for name, value in (fields | circumstances).items():
            _check(name, value)
        record = Record(**fields)
        if not record.source:
            raise ValueError("a record without a source")
        return cls(record, **circumstances)


@dataclass(frozen=True)
class Run:
    """One run. `settings` is the hash of everything that can change a word; `formats` are those that were
    asked for in this run and before; `since` is the first run whose records count. `total` and `total_bytes`
    describe its inputs where they are known, and `started` is in seconds since 1970.
    """

    settings: str
    formats: tuple[str, ...] = ()
    number: int = 1
    since: int = 1
    total: int | None = None
    total_bytes: int | None = None
    started: float = 0.0
    program: str = ""

    def to_json(self) -> bytes:
        values: dict[str, Json] = asdict(self) | {
            "formats": list(self.formats),
            "version": VERSION,
        }
        return (json.dumps(values) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Run:
        """Raises UsageError for what is no run, or one of a newer version."""
        try:
            values: dict[str, Any] = json.loads(data)
            version = values.pop("version")
            if version == VERSION:
                known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
                return cls(**known | {"formats": tuple(known["formats"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{where} is damaged: name another output") from error
        raise UsageError(f"{where} was written by a newer version of forescribe (layout {version})")

    def followed_by(self, other: Run, *, overwrite: bool) -> Run | None:
        """The run that takes this one's place for the wishes of `other`; None if this one serves them.

        More formats or other inputs continue it: records stay, and only what lacks a format is done again.
        Raises UsageError if the settings differ and `overwrite` is not set.
        """
        number = self.number + 1
        if not other.settings:  # nothing can be read, so nothing will be made
            return None
        if overwrite or not self.settings:
            return replace(other, number=number, since=number)
        if other.settings != self.settings:
            raise UsageError(
                "the output holds results of other settings (language, model, times, ...): name another "
                "output, or make all results again with --overwrite"
            )
        formats = tuple(dict.fromkeys((*self.formats, *other.formats)))
        same = formats == self.formats and (other.total, other.total_bytes) in (
            (self.total, self.total_bytes),
            (None, None),
        )
        return None if same else replace(other, number=number, since=self.since, formats=formats)


def record_key(digest: str, generation: int) -> str:
    """The name of a record's file, by the hash of its source."""
    return f"{RECORDS}{digest}{'' if generation == 1 else f'.{generation}'}.json"


def source_hash(source: str) -> str:
    return hashlib.sha256(os.fsencode(source)).hexdigest()[:32]


def parsed(name: str) -> tuple[str, int] | None:
    """The hash and the generation in the name of a record's file; None for other files."""
    match = _NAME.fullmatch(name)
    return (match[1], int(match[2] or 1)) if match else None


def _check(name: str, value: Any) -> None:
    """Raises ValueError for a value of another kind than `to_dict` writes."""
    if value is None:
        fits = name not in (*_TEXTS, *_COUNTS, *_NUMBERS)
    elif name in (*_TEXTS, *_OPTIONAL_TEXTS):
        fits = isinstance(value, str)
    elif name in _COUNTS:
        fits = isinstance(value, int)
    elif name in (*_NUMBERS, *_OPTIONAL_NUMBERS):
        fits = isinstance(value, int | float) and (name not in _SUMMED or math.isfinite(value))
    else:
        fits = name not in _LISTS or all(isinstance(one, str) for one in value)
    if not fits:
        raise ValueError(f"{name} of a record is no value of its kind")
