"""Opening stores: one connection per bucket, and a store for every location in it.

    with_connections = Stores()
    store = with_connections.at(Location.parse("s3://calls/2026"))

Knows which scheme is served by which backend.
"""

from __future__ import annotations

import threading

from .backends import Backend
from .locations import WEB, Location
from .retrying import Retries
from .stores import Store


class Stores:
    """Stores that share the connections of their buckets. May be used by several threads."""

    def __init__(self, retries: Retries | None = None) -> None:
        self.retries = retries or Retries()
        self._backends: dict[str, Backend] = {}
        self._opening = threading.Lock()

    def at(self, location: Location) -> Store:
        """The store at a location. Raises UsageError without the extra, and DeniedError or
        UnsupportedError for settings that cannot be used; nothing is requested yet."""
        return Store(self._backend(location), location, self.retries)

    def of(self, location: Location) -> tuple[Store, str]:
        """A store and the key of the object at a location in it."""
        if location.scheme == "file":
            return self.at(location.parent), location.name
        return Store(self._backend(location), location.root, self.retries), location.key

    def requests(self) -> int:
        """Requests to all stores so far."""
        return sum(backend.requests.total() for backend in self._backends.values())

    def _backend(self, location: Location) -> Backend:
        with self._opening:
            folder = location.key if location.scheme == "file" else ""
            key = f"{location.scheme}://{location.host}{folder}"
            if key not in self._backends:
                self._backends[key] = _backend(location)
            backend = self._backends[key]
        if location.scheme in WEB:
            from .web_backend import WebBackend

            assert isinstance(backend, WebBackend)
            return backend.at(location)  # its signature is for one object
        return backend


def open_store(location: Location, *, retries: Retries | None = None) -> Store:
    """The store at one location; see `Stores.at`."""
    return Stores(retries).at(location)


def _backend(location: Location) -> Backend:
    if location.scheme in WEB:
        from .web_backend import WebBackend

        return WebBackend(location)
    if location.scheme == "hf":
        from .hub_backend import HubBackend

        return HubBackend(location)
    from .obstore_backend import ObstoreBackend

    return ObstoreBackend(location)


__all__ = ["Stores", "open_store"]
