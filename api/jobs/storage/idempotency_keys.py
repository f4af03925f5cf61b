"""Idempotency keys: which job a key of a client has created.

Does not know HTTP headers; the caller computes the fingerprint of a request.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from .database import Database, Tx
from .tables import KEYS


class IdempotencyKeys:
    """The keys of one database; `now` gives the time in Unix seconds."""

    def __init__(self, database: Database, now: Callable[[], float]) -> None:
        self._database, self._now = database, now

    def get(self, owner: str, key: str) -> tuple[str, str] | None:
        """The fingerprint and the job of a key; None if it is new."""
        query = sa.select(KEYS).where(KEYS.c.tenant == owner, KEYS.c.key == key)
        with self._database.engine.connect() as tx:
            row = tx.execute(query).one_or_none()
        return None if row is None else (row.fingerprint, row.job)

    def insert(self, tx: Tx, owner: str, key: str, fingerprint: str, job: str) -> None:
        """Raises IntegrityError if the owner has used the key before."""
        row = {"key": key, "fingerprint": fingerprint, "job": job, "created_at": self._now()}
        tx.execute(sa.insert(KEYS).values(tenant=owner, **row))

    def delete_before(self, when: float) -> None:
        with self._database.transaction() as tx:
            tx.execute(sa.delete(KEYS).where(KEYS.c.created_at < when))
