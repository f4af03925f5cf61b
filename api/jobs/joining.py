"""Joining the other processes of a database: refused where their blobs are elsewhere.

    joining.check(store, executor)

Jobs go to any process of a database, so all must see the same blobs. Each records with its heartbeat which
blob store it has. Does not compare clocks: another process is alive if its heartbeat changes while this one
looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forescribe.asr.errors import CapacityError, StorageError, UsageError
from forescribe.asr.installing import how_to_install

from ..settings import Settings
from .blob_storage.blob_store import BlobStore
from .storage.blobs import Blobs
from .storage.store import Store

if TYPE_CHECKING:
    from .blob_storage.object_blobs import ObjectBlobs

WATCH_S = 12.0
"""How long to watch a heartbeat that may be that of a dead process; longer than `recovery.DEAD_AFTER_S`."""

LOOK_S = 0.5

PATIENCE: Mapping[str, Any] = {"attempts": 5, "longest_s": 5.0, "total_s": 30.0}
"""Of requests to object storage: clients wait for some of them, and jobs wait on after them anyway."""


def open_store(settings: Settings, folder: Path) -> Store:
    """The job store of the settings, in the folder. Raises UsageError, CapacityError."""
    blobs: BlobStore = (
        Blobs(folder / "blobs")
        if settings.blobs_url is None
        else open_objects(settings.blobs_url, folder, settings.blob_cache_bytes)
    )
    return Store.open(folder, settings.database_url, blobs)


def open_objects(url: str, folder: Path, cache_bytes: int) -> ObjectBlobs:
    """The blobs at a URL. Raises UsageError if it cannot be used, CapacityError if it does not answer."""
    try:
        from forescribe.asr.storage.locations import Location
        from forescribe.asr.storage.stores import Retries
        from forescribe.asr.storage.stores import open_store as open_objects_at
    except ModuleNotFoundError as error:
        raise UsageError(
            f"blobs_url needs {error.name}: {how_to_install('serve', 's3')}"
        ) from error
    from .blob_storage.object_blobs import ObjectBlobs

    try:
        store = open_objects_at(Location.parse(url), retries=Retries(**PATIENCE))
        blobs = ObjectBlobs(store, folder / "objects", cache_bytes)
        blobs.probe()
    except StorageError as error:
        kind = CapacityError if error.code == "storage_unavailable" else UsageError
        raise kind(f"blobs_url: {error.message}") from error
    return blobs


def check(
    store: Store,
    executor: str,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Join the processes of the database. Raises UsageError if a living one has its blobs elsewhere."""
    beats = store.heartbeats
    beats.beat(
        executor, ()
    )  # first, so that of two that start together at least one sees the other
    first, end_s = beats.elsewhere(), clock() + WATCH_S
    while first and clock() < end_s:
        if any(beats.elsewhere().get(other, beat) != beat for other, beat in first.items()):
            beats.delete(executor)
            raise UsageError(
                "another process of this database keeps its audio and results in another place, so each "
                "would lack what the other has: set the same blobs_url for all, or the same data_dir on "
                "a disk that they share"
            )
        sleep(LOOK_S)
        beats.beat(executor, ())
