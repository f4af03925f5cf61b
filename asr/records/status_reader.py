"""Reading the status of an output, again and again: from records, or from a folder's manifest alone.

    reader = StatusReader("s3://out/2026")
    status = reader.read()          # one listing, and what is new since the last time

Knows where records are; how they are counted is in `run_status`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..batch.manifest import NAME as MANIFEST
from ..errors import UsageError
from ..storage.locations import is_url
from ..storage.opening_stores import Stores
from .record_store import RecordStore
from .run_status import RunStatus
from .stored_records import StoredRecord


class StatusReader:
    """The status of an output: a URL or a folder."""

    def __init__(
        self, output: str, *, stores: Stores | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.output, self.clock = output, clock
        self.records = RecordStore.open(output, stores=stores)

    def read(self) -> RunStatus:
        """Raises UsageError if nothing was ever written there, and LocatedError."""
        run = self.records.join()
        if run is None:
            return self._of_manifest()
        known = self.records.load()
        return RunStatus.of(
            known.values(),
            run,
            now=self.clock(),
            doubled=self.records.all_doubled,
            crashes=self.records.all_crashes,
        )

    def _of_manifest(self) -> RunStatus:
        """Of a folder that one machine writes: its manifest has no times and does not know the total."""
        path = Path(self.output, MANIFEST)
        if is_url(self.output) or not path.is_file():
            raise UsageError(
                f"{self.records.where}: no run has written there; name the output of `transcribe -o`"
            )
        latest: dict[str, StoredRecord] = {}
        for line in path.read_bytes().split(b"\n"):
            with suppress(ValueError, KeyError, TypeError, AttributeError):
                values = {"settings": "", "run": 1} | json.loads(line)
                stored = StoredRecord.from_dict(values)
                latest[stored.source] = stored
        return RunStatus.of(latest.values(), None, now=self.clock())


__all__ = ["StatusReader"]
