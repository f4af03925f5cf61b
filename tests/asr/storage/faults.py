"""A store whose requests and replies get lost, on top of one in memory."""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from forescribe.asr.storage.errors import UnavailableError
from forescribe.asr.storage.locations import Backend, Location, Reading
from forescribe.asr.storage.obstore_backend import ObstoreBackend
from forescribe.asr.storage.stores import Retries, Store

OK, LOST, REPLY_LOST, LAGS = "ok", "request lost", "reply lost", "listing lags"

_NUMBERS = itertools.count()


def memory() -> Location:
    """A store in memory that nobody else has."""
    return Location.parse(f"memory://test-{next(_NUMBERS)}")


def quick(attempts: int = 8) -> Retries:
    """Repeats without waiting."""
    return Retries(attempts=attempts, sleep=lambda seconds: None)


class FaultyBackend:
    """A backend that asks `fate` before every request; bodies break off after `whole` bytes, once each."""

    def __init__(
        self, inner: Backend, fate: Callable[[str], str], whole: int | None = None
    ) -> None:
        self.inner, self.fate, self.whole = inner, fate, whole
        self.root = inner.root
        self.broken: set[tuple[str, int]] = set()

    @property
    def requests(self) -> Counter[str]:
        return self.inner.requests

    def _lost(self) -> UnavailableError:
        return UnavailableError(self.root, "the store does not serve it now (503, SlowDown)")

    def _call(self, kind: str, *args: Any) -> Any:
        fate = self.fate(kind)
        if fate == LOST:
            raise self._lost()
        result = getattr(self.inner, kind)(*args)
        if fate == REPLY_LOST:
            raise self._lost()
        return result

    def list(self, prefix: str, after: str | None = None) -> Iterator[Any]:
        fate = self.fate("list")
        if fate == LOST:
            raise self._lost()
        for number, entry in enumerate(self.inner.list(prefix, after)):
            if fate == REPLY_LOST and number:
                raise self._lost()
            if fate != LAGS or zlib.crc32(f"{entry.key} {entry.etag}".encode()) % 2:
                yield entry

    def head(self, key: str) -> Any:
        return self._call("head", key)

    @contextmanager
    def read(self, key: str, start: int = 0, etag: str | None = None) -> Iterator[Reading]:
        if self.fate("get") != OK:
            raise self._lost()
        with self.inner.read(key, start, etag) as reading:
            yield replace(reading, pieces=self._pieces(key, start, reading.pieces))

    def _pieces(self, key: str, start: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if self.whole is not None and (key, start) not in self.broken:
                self.broken.add((key, start))
                yield piece[: self.whole]
                raise self._lost()
            yield piece

    def put(self, key: str, data: Any) -> Any:
        return self._call("put", key, data)

    def create(self, key: str, data: bytes) -> Any:
        return self._call("create", key, data)

    def delete(self, key: str) -> None:
        self._call("delete", key)


def faulty_store(
    location: Location, fate: Callable[[str], str], *, whole: int | None = None, attempts: int = 8
) -> Store:
    return Store(FaultyBackend(ObstoreBackend(location), fate, whole), location, quick(attempts))
