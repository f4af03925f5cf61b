"""How much each API key may store, counted in the transaction that stores it.

    shares.check(owner)                      # before a body is received
    with store.transaction() as tx, shares.counted(tx, owner):
        ...                                  # rows and references; if it is too much, this raises

Counted are audio, requests, results and corrections of jobs and the contents of files, a content that a key
refers to several times once. Resumable uploads that are not a job yet are limited where they are created
(`api.uploads`). Submissions of one key that come together wait for each other, so that they do not exceed
its share together. Does not know HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from ..errors import ApiError
from ..settings import Settings
from .database import Tx, hold
from .store import Store

CAPACITY_S = 10.0
"""How long a measurement of the disk is used: free space and stored bytes together hardly change."""


class StorageShares:
    """The shares of the keys of one job database."""

    def __init__(
        self, settings: Settings, store: Store, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings, self.store, self.clock = settings, store, clock
        self._capacity: tuple[float, int] | None = None  # when it was measured, bytes

    def stored_bytes(self, owner: str) -> int:
        """The bytes that count for a key."""
        with self.store.database.engine.connect() as tx:
            return self.store.references.stored_bytes(tx, owner)

    def limit(self, owner: str, tx: Tx | None = None) -> int | None:
        """The bytes that a key may store: `max_stored_bytes_per_key`, or an equal part of the disk. None (no
        limit) without keys, and in object storage unless the setting is given."""
        settings = self.settings
        if not owner:
            return None
        if settings.max_stored_bytes_per_key is not None:
            return settings.max_stored_bytes_per_key
        if self.store.blobs.marked:
            return None
        usable = self._measured(tx) - settings.min_free_bytes
        return max(0, usable // max(1, len(settings.api_keys)))

    def check(self, owner: str) -> None:
        """Raises ApiError `storage_quota_exceeded` if the share of the key is used up."""
        limit = self.limit(owner)
        if limit is not None:
            used = self.stored_bytes(owner)
            if used >= limit:
                raise _exceeded(used, limit)

    @contextmanager
    def counted(self, tx: Tx, owner: str) -> Iterator[None]:
        """Insert rows and references in the block. Raises ApiError `storage_quota_exceeded` at its end if the
        key then has more than its share; the transaction is rolled back."""
        if owner:
            hold(tx, "forescribe_stored", owner)
        yield
        limit = self.limit(owner, tx)
        used = 0 if limit is None else self.store.references.stored_bytes(tx, owner)
        if limit is not None and used > limit:
            raise _exceeded(used, limit)

    def _measured(self, tx: Tx | None) -> int:
        """The bytes of the disk that are free or hold what is counted. In the caller's transaction, if there
        is one: transactions that each wait for a second connection could use up the pool."""
        now, references = self.clock(), self.store.references
        if self._capacity is None or now - self._capacity[0] >= CAPACITY_S:
            with nullcontext(tx) if tx is not None else self.store.database.engine.connect() as tx:
                stored = references.stored_bytes(tx)
            self._capacity = now, stored + self.store.blobs.free
        return self._capacity[1]


def _exceeded(used: int, limit: int) -> ApiError:
    return ApiError(
        "storage_quota_exceeded",
        f"this key would store {used} bytes or more, and {limit} are its share: delete jobs or files that "
        "are no longer needed (DELETE /v1/jobs/{id}, DELETE /v1/files/{id})",
    )
