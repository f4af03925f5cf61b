"""Spool: recordings are fetched ahead of the engine, into a folder of bounded size.

    spool = Fetching(stores, place="/mnt/fast", limit=16 << 30).spool()
    spool.order(sources)
    copy = spool.take(sources[0])       # waits for it; raises why it cannot be fetched
    str(copy), os.fspath(copy)          # the name of the recording, the file to open
    spool.release(sources[0].path)      # its result is written: the room is free

Whole recordings are fetched, as an mp4 may have its index at the end. A recording that cannot be fetched
fails alone. A folder that a killed process left behind is removed by the next one in the same place: the
lock that it held has gone with it. Knows stores, locations and files; nothing of audio.
"""

from __future__ import annotations

import fcntl
import os
import posixpath
import shutil
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..errors import ForescribeError, OutputError
from ..records.sources import Source
from ..storage.locations import WEB, Entry
from ..storage.stores import Stores
from . import fingerprint
from .remote_inputs import HEADS

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
class Fetching:
    """From which stores a batch fetches, and the folder and the bytes of its spool, see `Spool`. The spool is
    made when there is something to fetch."""

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


@dataclass(frozen=True)
class LocalCopy(os.PathLike[str]):
    """A recording on this machine: its name by `str`, its file by `os.fspath`."""

    name: str
    path: Path
    content: str
    """The hash of its bytes."""
    entry: Entry

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return self.name


class Spool:
    """Local copies of recordings, at most `limit` bytes.

    Args:
        stores: where recordings are fetched from.
        place: a folder for the copies; by default that of large temporary files.
        limit: bytes; None is half of what is free on the disk, at most `MOST`.
    """

    def __init__(
        self,
        stores: Stores,
        *,
        place: str | None = None,
        limit: int | None = None,
        fetchers: int = FETCHERS,
        ahead: int = AHEAD,
    ) -> None:
        self.stores, self.fetchers, self.ahead = stores, fetchers, ahead
        self.folder = SpoolFolder(place)
        self.limit = min(MOST, self.folder.free // 2) if limit is None else limit
        self.used = 0  # bytes reserved
        self._items: dict[str, _Item] = {}
        self._pending: deque[_Item] = deque()  # in order, not fetched yet
        self._ahead = 0  # fetching or ready
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closing = False
        self._number = 0

    def order(self, sources: Iterable[Source]) -> None:
        """Fetch these in this order, as there is room; may be called again with more."""
        with self._changed:
            for source in sources:
                known = self._items.get(source.path)
                if known is None or known.state in ("released", "failed"):
                    self._items[source.path] = _Item(source)
                    self._pending.append(self._items[source.path])
            self._changed.notify_all()
        while len(self._threads) < min(self.fetchers, len(self._items)):
            thread = threading.Thread(target=self._work, name="fetch", daemon=True)
            self._threads.append(thread)
            thread.start()

    def take(self, source: Source) -> LocalCopy | None:
        """The copy of a recording of the order, as soon as it is there; the same until its `release`.

        None if there is no room for it until a recording that was taken is released: who takes has to
        finish those first. Raises why it cannot be fetched: LocatedError, OutputError (`storage_full`).
        """
        with self._changed:
            item = self._items[source.path]
            while True:
                if item.state in ("ready", "taken"):
                    self._ahead -= item.state == "ready"
                    item.state = "taken"
                    self._changed.notify_all()
                    return item.copy
                if item.state == "failed":
                    assert item.error is not None
                    raise item.error
                if self._closing or item.state == "released":
                    raise RuntimeError(f"{source.path} is not in the spool")
                if item.state == "sized" and not self._has_room(item):
                    states = {other.state for other in self._items.values()}
                    if "taken" in states:
                        return None
                    assert "fetching" in states or "ready" not in states, "not in the order"
                self._changed.wait(1.0)

    def is_ready(self, source: Source) -> bool:
        """Whether `take` would answer at once."""
        with self._changed:
            return self._items[source.path].state in ("ready", "taken", "failed")

    def release(self, path: str) -> None:
        """Remove a copy, if there is one; what is fetched no more is given up."""
        with self._changed:
            item = self._items.get(path)
            if item is None or item.state in ("fetching", "released"):
                return
            self._remove(item, "released")

    def close(self) -> None:
        """End all fetching and remove all copies; returns at once."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self.folder.close()

    # Fetching, in threads

    def _work(self) -> None:
        while (item := self._next()) is not None:
            try:
                self._fetch(item)
            except _Stopped:
                return
            except Exception as error:
                self._fail(item, error)

    def _next(self) -> _Item | None:
        """The next recording of the order, once there is room for it; None after `close`."""
        with self._changed:
            while not self._closing:
                item = self._pending[0] if self._pending and self._ahead < self.ahead else None
                if item is not None and item.state == "listed":
                    self._describe(item)
                if item is not None and item.state == "sized" and self._has_room(item):
                    item.state, self.used = "fetching", self.used + item.size
                    self._ahead += 1
                if item is None or item.state == "sized":  # what comes later must not take its room
                    self._changed.wait()
                    continue
                self._pending.popleft()
                if item.state == "fetching":
                    return item
        return None

    def _describe(self, item: _Item) -> None:
        """Set how much room a recording needs; one that can never have it fails."""
        entry = item.source.entry
        item.size = entry.size if entry is not None else min(UNKNOWN, self.limit)
        item.state = "sized"
        if item.size > self.limit:
            item.error = self._too_large(item, f"{item.size} bytes")
            self._remove(item, "failed")

    def _too_large(self, item: _Item, what: str) -> OutputError:
        return OutputError(
            f"{item.source.path}: {what} do not fit into the spool of {self.limit} bytes; set "
            "--spool-bytes, or name a larger disk with --spool",
            code="storage_full",
        )

    def _fetch(self, item: _Item) -> None:
        location = item.source.location
        assert location is not None
        store, key = self.stores.of(location)
        with self._changed:
            self._number += 1
            name = f"{self._number}{posixpath.splitext(location.name)[1][:8]}"
        path = self.folder.path / name
        entry = store.fetch(key, path, progress=lambda done: self._check(item, done))
        content = fingerprint.content(str(path))
        if content is None:
            raise OutputError(f"{item.source.path}: its local copy cannot be read")
        size = path.stat().st_size
        with self._changed:
            if self._closing:
                raise _Stopped
            item.copy = LocalCopy(item.source.path, path, content, Entry(key, size, entry.etag))
            self.used += size - item.size
            item.size, item.state = size, "ready"
            self._changed.notify_all()

    def _check(self, item: _Item, done: int) -> None:
        """Between two pieces: whether to go on. More room is reserved where more has come than was said."""
        if self._closing:
            raise _Stopped
        if done <= item.size:
            return
        with self._changed:
            more = min(max(done - item.size, UNKNOWN // 16), self.limit - self.used)
            if item.size + more < done:
                raise self._too_large(item, f"more than {done} bytes")
            item.size, self.used = item.size + more, self.used + more

    def _fail(self, item: _Item, error: Exception) -> None:
        if not isinstance(error, ForescribeError):  # a bug here: the other recordings go on
            text = f"{item.source.path}: {type(error).__name__} while it was fetched"
            failure = OutputError(text, code="internal_error")
            failure.__cause__ = error
            error = failure
        with self._changed:
            item.error = error
            self._remove(item, "failed")

    # Room; the lock is held

    def _has_room(self, item: _Item) -> bool:
        return self.used + item.size <= self.limit

    def _remove(self, item: _Item, state: State) -> None:
        if item.state in ("fetching", "ready", "taken"):
            self.used -= item.size
            self._ahead -= item.state != "taken"
        if item.copy is not None:
            item.copy.path.unlink(missing_ok=True)
        item.copy, item.size, item.state = None, 0, state
        self._changed.notify_all()


class _Stopped(Exception):
    """The spool was closed while a recording was fetched."""


class SpoolFolder:
    """A folder of one process, below `place`; removed by `close`. Raises OutputError."""

    def __init__(self, place: str | None = None) -> None:
        top = Path(place) if place is not None else _default_place()
        try:
            top.mkdir(parents=True, exist_ok=True)
            _sweep(top)
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=top))
            # Also at the end of a process that does not come to `close`.
            self._remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
            self._lock = (self.path / LOCK).open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            raise OutputError(
                f"cannot write to the spool {str(top)!r}: {error.strerror or error}; name another folder "
                "with --spool"
            ) from error

    @property
    def free(self) -> int:
        """Free bytes on its disk."""
        return shutil.disk_usage(self.path).free

    def close(self) -> None:
        self._remove()
        self._lock.close()


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


State = Literal["listed", "sized", "fetching", "ready", "taken", "failed", "released"]


@dataclass
class _Item:
    source: Source
    state: State = "listed"
    size: int = 0  # reserved, from "fetching" to "released"
    copy: LocalCopy | None = None
    error: ForescribeError | None = None
