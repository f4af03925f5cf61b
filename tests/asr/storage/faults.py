"""A bucket whose requests get lost, on top of one in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forescribe.asr.storage.errors import LocatedError, UnavailableError
from forescribe.asr.storage.locations import Entry, Location
from forescribe.asr.storage.store import Store
from forescribe.asr.storage.stores import BucketStore, Stores

OK, LOST = "ok", "request lost"

Fate = Callable[[Location, str], str | LocatedError]

_NUMBERS = itertools.count()


def memory() -> Location:
    """A store in memory that nobody else has."""
    return Location.parse(f"memory://test-{next(_NUMBERS)}")


class FaultyBucket(BucketStore):
    """Asks `fate` before every request, by the object's location; bodies break off after `whole` bytes."""

    def __init__(self, inner: Store, fate: Fate, whole: int | None = None) -> None:
        super().__init__(inner.location, inner.connection, inner.requests)
        self.fate, self.whole = fate, whole

    @contextmanager
    def _request(self, kind: str, key: str) -> Iterator[None]:
        fate = self.fate(self.place(key), kind)
        if isinstance(fate, LocatedError):
            raise fate
        if fate == LOST:
            raise self._lost(key)
        with super()._request(kind, key):
            yield

    @contextmanager
    def reading(self, key: str) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        with super().reading(key) as (entry, pieces):
            yield entry, self._pieces(key, pieces)

    def _pieces(self, key: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if self.whole is not None:
                yield piece[: self.whole]
                raise self._lost(key)
            yield piece

    def _lost(self, key: str) -> UnavailableError:
        return UnavailableError(self.place(key), "the store does not serve it now (503, SlowDown)")


class FaultyStores(Stores):
    """Stores whose requests meet `fate(location, kind)`."""

    def __init__(self, fate: Fate = lambda where, kind: OK) -> None:
        super().__init__()
        self.fate = fate

    def at(self, location: Location) -> Store:
        return FaultyBucket(super().at(location), lambda where, kind: self.fate(where, kind))
