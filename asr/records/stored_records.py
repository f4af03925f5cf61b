"""Records as they are stored: what became of a recording, with what, by whom and when.

    stored = StoredRecord(record, settings="5e77", run=1, generation=1)
    StoredRecord.from_dict(json.loads(stored.to_json()))

The first record of a recording is `<hash>.json`. A later one that takes its place, after a failure, a
change or with another format, is `<hash>.2.json`, and so on: nothing is ever replaced, so creating a file
is all that two writers need to be told apart.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ..batch.manifest import Record
from ..formats.transcript import Json
from .run_settings import Run

RECORDS = "_forescribe/records/"
CRASHES = "_forescribe/crashes/"
DOUBLED = "_forescribe/doubled/"

_NAME = re.compile(r"([0-9a-f]{32})(?:\.(\d+))?\.json")


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
        return record_key(self.source, self.generation)

    @property
    def formats(self) -> frozenset[str]:
        """The formats of the results."""
        return frozenset(PurePosixPath(name).suffix[1:] for name in self.record.outputs)

    @property
    def content(self) -> str | None:
        """The hash of the recording's bytes, if its result can be resumed."""
        mark = self.record.fingerprint
        return mark.removeprefix("sha256:").partition("+")[0] if mark else None

    def counts_in(self, run: Run) -> bool:
        """Whether it belongs to `run` or to one that `run` continues."""
        return self.run >= run.since and self.settings == run.settings

    def serves(self, run: Run, formats: frozenset[str]) -> bool:
        """Whether nothing is left to do for these formats, if the recording has not changed."""
        done = self.record.status == "succeeded" and formats <= self.formats
        return done and self.counts_in(run)

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


_FIELDS = tuple(asdict(Record("", "failed")))
_CIRCUMSTANCES = ("settings", "run", "generation", "worker", "at", "token")


_TEXTS = ("path", "status", "source", "settings", "worker", "token")
_OPTIONAL_TEXTS = ("code", "message", "language", "fingerprint", "version")
_COUNTS = ("attempt", "run", "generation")
_NUMBERS = ("wall_s", "at")
_OPTIONAL_NUMBERS = ("audio_s", "rtfx", "acceptance_rate", "mean_acceptance_length")
_SUMMED = ("wall_s", "at", "audio_s")
_LISTS = ("warnings", "outputs")


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


def record_key(source: str, generation: int = 1) -> str:
    """The name of a record's file."""
    return f"{RECORDS}{source_hash(source)}{'' if generation == 1 else f'.{generation}'}.json"


def source_hash(source: str) -> str:
    return hashlib.sha256(os.fsencode(source)).hexdigest()[:32]


def parsed(name: str) -> tuple[str, int] | None:
    """The hash and the generation in the name of a record's file; None for other files."""
    match = _NAME.fullmatch(name)
    return (match[1], int(match[2] or 1)) if match else None


__all__ = ["CRASHES", "DOUBLED", "RECORDS", "StoredRecord", "parsed", "record_key", "source_hash"]
