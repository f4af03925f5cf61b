"""How a batch fetches its recordings: from which stores, into which spool.

    fetching = Fetching(stores, place="/mnt/fast", limit=20 << 30)
    Batch(sources, outputs, settings=..., fetching=fetching)

Knows settings; the spool is made when there is something to fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from ...errors import ForescribeError
from ...records.recording_sources import Source
from ...storage.locations import WEB
from ...storage.opening_stores import Stores
from .remote_inputs import HEADS
from .spool import Spool


@dataclass(frozen=True)
class Fetching:
    """Stores, and the folder and the bytes of the spool; see `Spool`."""

    stores: Stores
    place: str | None = None
    limit: int | None = None

    def spool(self) -> Spool:
        """Raises OutputError."""
        return Spool(self.stores, place=self.place, limit=self.limit)

    def with_versions(
        self, sources: Sequence[Source], known: Callable[[Source], bool]
    ) -> list[Source]:
        """The same sources. Web servers are asked for the versions of recordings that have results, one
        request each; a server that does not answer will be asked for the recording itself."""
        with ThreadPoolExecutor(HEADS, "versions") as pool:
            return list(
                pool.map(lambda source: self._asked(source) if known(source) else source, sources)
            )

    def _asked(self, source: Source) -> Source:
        location = source.location
        if location is None or location.scheme not in WEB or source.entry or source.error:
            return source
        with suppress(ForescribeError):
            store, key = self.stores.of(location)
            return replace(source, entry=store.head(key))
        return source


__all__ = ["Fetching"]
