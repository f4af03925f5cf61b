"""Stores: which scheme is served by which class, and connections that are shared, one per bucket."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .locations import WEB, Location
from .services import BucketStore, HubStore, WebStore
from .store import Store

PATIENCE_S = 180.0
"""Seconds for which a request is repeated."""


@dataclass(frozen=True, eq=False)
class Stores:
    """Stores that share the connections of their buckets. `patience_s` is how long requests are repeated."""

    patience_s: float = PATIENCE_S
    _opened: dict[str, tuple[Any, Counter[str]]] = field(default_factory=dict, init=False)
    _opening: threading.Lock = field(default_factory=threading.Lock, init=False)

    def at(self, location: Location) -> Store:
        """The store at a location. Raises UsageError without the extra, and DeniedError or
        UnsupportedError for settings that cannot be used; nothing is requested yet."""
        folder = location.key if location.scheme == "file" else ""
        key = f"{location.scheme}://{location.host}{folder}"
        kind = _kind(location)
        with self._opening:
            if key not in self._opened:
                self._opened[key] = kind.opened(location, self.patience_s), Counter()
            return kind(location, *self._opened[key])

    def of(self, location: Location) -> tuple[Store, str]:
        """A store and the key of the object at a location in it."""
        if location.scheme == "file":
            return self.at(location.parent), location.name
        root = (
            location if location.scheme in WEB else location.root
        )  # its signature is for one object
        return self.at(root), location.key


def open_store(location: Location, *, patience_s: float = PATIENCE_S) -> Store:
    """The store at one location; see `Stores.at`."""
    return Stores(patience_s).at(location)


def _kind(location: Location) -> type[Store]:
    if location.scheme in WEB:
        return WebStore
    return HubStore if location.scheme == "hf" else BucketStore
