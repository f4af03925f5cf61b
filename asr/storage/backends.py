"""The part of a store that differs between services: single requests, without repetitions.

A backend's keys are names within its bucket. Every method that makes a request raises `LocatedError`;
`reply lost` cannot be told from `request lost`, so callers expect that a failed write may have happened.
Knows the protocol only; the services are in modules of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .locations import Location


@dataclass(frozen=True)
class Entry:
    """An object as listed: its key, its bytes, and the tag that changes with its content.

    `modified` is the store's time of writing in seconds since 1970; None where it does not say.
    """

    key: str
    size: int
    etag: str | None = None
    modified: float | None = None

    @property
    def version(self) -> str:
        """Tells contents of one key apart without reading them."""
        return f"{self.size}:{(self.etag or '').strip(chr(34))}"


@dataclass(frozen=True)
class Reading:
    """An object that is being read: what it is, and its bytes from `start` on."""

    entry: Entry
    pieces: Iterator[bytes]
    start: int = 0


class Backend(Protocol):
    """Single requests to one bucket, container, server or repository. `requests` counts them by kind;
    methods may be called from several threads."""

    root: Location
    requests: Counter[str]

    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        """Objects whose keys lie in the folder `prefix` ("" is everything), in the order of keys, from
        behind `after` on."""
        ...

    def head(self, key: str) -> Entry:
        """Raises MissingError."""
        ...

    def read(
        self, key: str, start: int = 0, etag: str | None = None
    ) -> AbstractContextManager[Reading]:
        """Read from byte `start` on. With `etag`, raises ChangedError if the object has another one."""
        ...

    def put(self, key: str, data: bytes | Path) -> Entry:
        """Write a whole object, atomically; replaces an existing one."""
        ...

    def create(self, key: str, data: bytes) -> Entry:
        """Write an object if there is none. Raises ExistsError."""
        ...

    def replace(self, key: str, data: bytes, etag: str) -> Entry:
        """Write an object if it has this tag. Raises ChangedError."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        ...


__all__ = ["Backend", "Entry", "Reading"]
