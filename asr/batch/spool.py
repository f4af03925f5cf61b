"""Spool: recordings are fetched ahead of the engine, into a folder of bounded size.

Whole recordings are fetched, as an mp4 may have its index at the end. A recording that cannot be fetched
fails alone. A folder that a killed process left behind is removed by the next one in the same place: the
lock that it held has gone with it. Knows stores, locations and files; nothing of audio.
"""

from __future__ import annotations

import fcntl
import os
import posixpath
import secrets
import shutil
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from ..errors import OutputError, output_errors
from ..storage.locations import Entry, Source
from ..storage.stores import Stores
from .ledger import content_hash

PREFIX = "forescribe-spool-"
"""The beginning of the names of folders."""

LOCK = "lock"
"""The file in a folder whose lock its process holds."""

MOST = 32 << 30
"""Bytes of a spool by default, if half of the disk's free space is more."""

FETCHERS = 4
AHEAD = 32
"""Recordings that are fetched but not taken yet, at most."""

UNKNOWN = 1 << 30
"""Bytes that are reserved for a recording whose server does not say how long it is."""


@dataclass(frozen=True)
class LocalCopy(os.PathLike[str]):
    """A recording on this machine: its name by `str`, its file by `os.fspath`. `content` is the hash of its
    bytes, and `entry` what its store says about it; None for a file of this machine, which is no copy."""

    name: str
    path: Path
    content: str | None
    entry: Entry | None = None

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return self.name

    def remove(self) -> None:
        if self.entry is not None:
            self.path.unlink(missing_ok=True)


class SpoolFolder:
    """A folder of one process, below `place`; removed by `close`. Raises OutputError."""

    def __init__(self, place: str | None = None) -> None:
        top = Path(place) if place is not None else _default_place()
        with output_errors(f"to the spool {str(top)!r}", "name another folder with --spool"):
            top.mkdir(parents=True, exist_ok=True)
            _sweep(top)
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=top))
            lock = (self.path / LOCK).open("wb")
            # Also at the end of a process that does not come to `close`.
            self.close = weakref.finalize(self, _removed, self.path, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)

    def copy(
        self, source: Source, stores: Stores, progress: Callable[[int], object] = lambda done: None
    ) -> LocalCopy:
        """A recording as a file of this machine, fetched if it is at a location. `progress` gets the bytes so
        far, and may raise. Raises LocatedError, OutputError."""
        if source.location is None:
            return LocalCopy(source.path, Path(source.path), content_hash(source.path))
        store, key = stores.of(source.location)
        suffix = posixpath.splitext(source.location.name)[1][:8]
        path = self.path / f"{secrets.token_hex(8)}{suffix}"
        entry = store.fetch(key, path, progress=progress)
        content = content_hash(str(path))
        if content is None:
            raise OutputError(f"{source.path}: its local copy cannot be read")
        return LocalCopy(source.path, path, content, replace(entry, size=path.stat().st_size))


class Spool:
    """Local copies of recordings in a folder below `place`, by default that of large temporary files. They
    have at most `limit` bytes, by default half of what is free on the disk, up to `MOST`."""

    def __init__(
        self, stores: Stores, *, place: str | None = None, limit: int | None = None
    ) -> None:
        self.stores, self.place, self.limit = stores, place, limit
        self.used = 0  # bytes reserved
        self.folder: SpoolFolder | None = None  # made when there is something to fetch
        self._items: dict[str, _Item] = {}
        self._pending: deque[_Item] = deque()  # in order, not begun yet
        self._fetched_ahead = 0  # begun and not taken
        self._lock = threading.RLock()
        self._pool = ThreadPoolExecutor(FETCHERS, "fetch")
        self._closing = False

    def order(self, sources: Iterable[Source]) -> None:
        """Fetch these in this order, as there is room; to be called once. Raises OutputError."""
        self.folder = SpoolFolder(self.place)
        if self.limit is None:
            self.limit = min(MOST, shutil.disk_usage(self.folder.path).free // 2)
        with self._lock:
            for source in sources:
                self._items[source.path] = _Item(source)
                self._pending.append(self._items[source.path])
            self._begin()

    def take(self, source: Source) -> LocalCopy | None:
        """The copy of a recording of the order, as soon as it is there; the same until its `release`. They
        are taken in their order.

        None if there is no room for it until a recording that was taken is released: who takes has to
        finish those first. Raises why it cannot be fetched: LocatedError, OutputError (`storage_full`).
        """
        item = self._items[source.path]
        with self._lock:
            self._begin()
            if item.copy is None:
                return None
        copy = item.copy.result()
        with self._lock:
            self._fetched_ahead -= not item.taken
            item.taken = True
            self._begin()
        return copy

    def is_ready(self, source: Source) -> bool:
        """Whether `take` would answer at once; so is what is not fetched."""
        item = self._items.get(source.path)
        return item is None or (item.copy is not None and item.copy.done())

    def release(self, path: str) -> None:
        """Remove a copy, if there is one."""
        with self._lock:
            item = self._items.get(path)
            if item is None or not item.taken or item.copy is None:
                return
            item.copy.result().remove()
            self.used -= item.size
            item.copy, item.taken, item.size = None, False, 0
            self._begin()

    def close(self) -> None:
        """End all fetching and remove all copies; returns at once."""
        self._closing = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self.folder is not None:
            self.folder.close()

    def _begin(self) -> None:
        """Begin what there is room for, in order: what comes later must not take its room."""
        assert self.limit is not None
        while self._pending and self._fetched_ahead < AHEAD and not self._closing:
            item = self._pending[0]
            entry = item.source.entry
            size = entry.size if entry is not None and entry.size >= 0 else min(UNKNOWN, self.limit)
            if size > self.limit:
                item.copy = Future()
                item.copy.set_exception(self._too_large(item, size))
            elif self.used + size > self.limit:
                return
            else:
                item.size, self.used = size, self.used + size
                self._fetched_ahead += 1
                item.copy = self._pool.submit(self._fetch, item)
            self._pending.popleft()

    def _fetch(self, item: _Item) -> LocalCopy:
        """In a thread. Raises ForescribeError."""
        assert self.folder is not None
        try:
            copy = self.folder.copy(
                item.source, self.stores, progress=lambda done: self._grow(item, done)
            )
        except BaseException:
            with self._lock:
                self.used, item.size = self.used - item.size, 0
                self._fetched_ahead -= 1
                self._begin()
            raise
        with self._lock:
            assert copy.entry is not None
            self.used += copy.entry.size - item.size
            item.size = copy.entry.size
        return copy

    def _grow(self, item: _Item, done: int) -> None:
        """Between two pieces: whether to go on. More room is taken where more has come than was said."""
        if self._closing:
            raise OutputError(f"{item.source.path}: the run has ended")
        assert self.limit is not None
        with self._lock:
            more = max(0, done - item.size)
            if self.used + more > self.limit:
                raise self._too_large(item, done)
            item.size, self.used = item.size + more, self.used + more

    def _too_large(self, item: _Item, size: int) -> OutputError:
        return OutputError(
            f"{item.source.path}: {size} bytes do not fit into the spool of {self.limit} bytes; name a "
            "larger disk with --spool",
            code="storage_full",
        )


@dataclass(eq=False)
class _Item:
    source: Source
    copy: Future[LocalCopy] | None = None  # None: not begun, or released
    size: int = 0  # reserved
    taken: bool = False


def _removed(folder: Path, lock: IO[bytes]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()


def _default_place() -> Path:
    """The folder for large temporary files: /tmp is memory on many machines."""
    for name in (os.environ.get("TMPDIR"), "/var/tmp"):
        if name and os.access(name, os.W_OK | os.X_OK):
            return Path(name)
    return Path(tempfile.gettempdir())


def _sweep(top: Path) -> None:
    for folder in top.glob(f"{PREFIX}*"):
        with suppress(OSError), (folder / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
