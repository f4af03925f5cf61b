"""Runs: what the results in an output are made with, in `_forescribe/run.json`.

A run is created once and never changed; a further one (`run.2.json`) takes its place. Records of runs
before `since` do not count any more, so nothing has to be deleted to start again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..errors import UsageError
from ..formats.transcript import Json

VERSION = 1
"""Of the layout of `_forescribe`; a newer one is refused."""


@dataclass(frozen=True)
class Run:
    """One run. `settings` is the hash of everything that can change a word; `formats` are those that were
    asked for in this run and before; `since` is the first run whose records count. `total`, `total_bytes`
    and `total_s` (audio) describe its inputs where they are known, and `started` is in seconds since 1970.
    """

    settings: str
    formats: tuple[str, ...] = ()
    number: int = 1
    since: int = 1
    total: int | None = None
    total_bytes: int | None = None
    total_s: float | None = None
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


__all__ = ["Run"]
