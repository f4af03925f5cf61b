"""Stores: objects below a location, with repeated requests and conditional writes.

    store = open_store(Location.parse("s3://out/2026"))
    store.put("a.srt", b"...")
    store.create("records/9c41.json", b"...")      # False: it exists already

Keys are relative to the store's location. Temporary failures (throttling, resets, time-outs) are repeated
by `Retries`; what is raised then is final. All methods may be called from several threads.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from .backends import Backend, Entry
from .copying import Copy
from .locations import Location
from .retrying import Retries
from .storage_errors import (
    ChangedError,
    ExistsError,
    MissingError,
    UnavailableError,
    UnsupportedError,
)

SMALL = 64 << 20
"""Bytes of the largest object that `read` returns."""

_MD5 = re.compile(r'"?[0-9a-f]{32}"?')


class Store:
    """The objects below `location`.

    Args:
        backend: single requests to its bucket.
        location: the folder that keys are relative to.
        retries: when temporary failures are repeated.
    """

    def __init__(
        self, backend: Backend, location: Location, retries: Retries | None = None
    ) -> None:
        self.backend, self.location = backend, location
        self.retries = retries or Retries()
        self._etags_are_md5 = True

    @property
    def requests(self) -> Counter[str]:
        """Requests made so far by kind (`get`, `put`, `list`, ...), repetitions included; shared by all
        stores of the bucket."""
        return self.backend.requests

    def list(self, prefix: str = "") -> list[Entry]:
        """All objects below the folder `prefix`, in the order of their keys; none if there is no such
        folder. One request per 1,000 objects. A listing that breaks off continues where it was."""
        found: list[Entry] = []
        folder = self._key(prefix).rstrip("/")

        def more() -> None:
            for entry in self.backend.list(folder, found[-1].key if found else None):
                found.append(entry)

        self.retries.call(more)
        return [replace(entry, key=self._relative(entry.key)) for entry in found]

    def head(self, key: str) -> Entry:
        """What the store knows about an object. Raises MissingError."""
        entry = self.retries.call(lambda: self.backend.head(self._key(key)))
        return replace(entry, key=key)

    def read(self, key: str) -> bytes:
        """The bytes of a small object. Raises MissingError, and UnsupportedError above `SMALL` bytes."""

        def attempt() -> bytes:
            data = bytearray()
            with self.backend.read(self._key(key)) as reading:
                size = reading.entry.size
                for piece in () if size > SMALL else reading.pieces:
                    data += piece
                    size = max(size, len(data))  # not every server says it, or the truth
                    if size > SMALL:
                        break
            if size > SMALL:
                raise UnsupportedError(
                    self.location / key, f"{size} bytes or more are too many to read at once"
                )
            return bytes(data)

        return self.retries.call(attempt)

    def fetch(
        self,
        key: str,
        path: Path,
        *,
        etag: str | None = None,
        progress: Callable[[int], object] = lambda done: None,
    ) -> Entry:
        """Copy an object to a new file, in pieces; after a break it continues where it was.

        Where the tag is an MD5, the copy is compared with it; a damaged copy is fetched again. `progress`
        receives the number of bytes so far, and may raise. Raises MissingError, ChangedError if the object
        is not (or no longer) the version `etag`, and OutputError (`storage_full`, `unwritable_output`) for
        the file; what is incomplete is removed.
        """
        seen: set[str] = set()
        try:
            for _ in range(3):
                copy = Copy(self.backend, self._key(key), path, etag, progress)
                entry = copy.run(self.retries)
                if self._is_intact(entry, copy.md5) or copy.md5 in seen:
                    # Read twice alike: the tag is no MD5, as where a key service encrypts.
                    self._etags_are_md5 &= copy.md5 not in seen
                    return replace(entry, key=key)
                seen.add(copy.md5)
        except BaseException:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            raise
        path.unlink(missing_ok=True)
        raise UnavailableError(self.location / key, "arrives damaged, and differently every time")

    def put(self, key: str, data: bytes | Path) -> Entry:
        """Write an object, atomically, in parts if it is large; replaces an existing one."""
        return self.retries.call(lambda: self.backend.put(self._key(key), data))

    def create(self, key: str, data: bytes) -> bool:
        """Write an object if there is none; False if there is one that is not `data`.

        A write whose reply was lost is found by reading the object, so `data` should hold something that no
        other writer writes, such as a random number.
        """
        lost = False

        def attempt() -> bool:
            nonlocal lost
            try:
                self.backend.create(self._key(key), data)
            except ExistsError:
                return lost and self.read(key) == data
            except UnavailableError:
                lost = True
                raise
            return True

        return self.retries.call(attempt)

    def replace(self, key: str, data: bytes, etag: str) -> bool:
        """Write an object if it still has the tag `etag`; False if it has another one. Lost replies are
        handled as by `create`."""
        lost = False

        def attempt() -> bool:
            nonlocal lost
            try:
                self.backend.replace(self._key(key), data, etag)
            except ChangedError:
                return lost and self.read(key) == data
            except UnavailableError:
                lost = True
                raise
            return True

        return self.retries.call(attempt)

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        self.retries.call(lambda: self.backend.delete(self._key(key)))

    def exists(self, key: str) -> bool:
        try:
            self.head(key)
        except MissingError:
            return False
        return True

    def check_create(self) -> None:
        """Check that `create` refuses to replace an object: some stores ignore the condition. Costs three
        requests. Raises UnsupportedError."""
        key = f"_forescribe/probe-{secrets.token_hex(16)}"
        first, second = secrets.token_bytes(16), secrets.token_bytes(16)
        self.create(key, first)
        try:
            refused = not self.create(key, second)
        finally:
            with suppress(Exception):  # leaving an empty object behind is no reason to fail
                self.delete(key)
        if not refused:
            raise UnsupportedError(
                self.location,
                "this store ignores conditions (If-None-Match), so results could be recorded twice; "
                "write to another store, or to a folder",
            )

    def below(self, name: str) -> Store:
        """The store at the folder `name` below this one, with the same connections."""
        return Store(self.backend, self.location / name, self.retries)

    @property
    def _base(self) -> str:
        """The folder of this store in the backend's bucket, without slashes around it."""
        return self.location.key.removeprefix(self.backend.root.key).strip("/")

    def _key(self, key: str) -> str:
        base = self._base
        return f"{base}/{key}" if base and key else base or key

    def _relative(self, key: str) -> str:
        return key.removeprefix(f"{self._base}/") if self._base else key

    def _is_intact(self, entry: Entry, md5: str) -> bool:
        known = entry.etag or ""
        checks = self._etags_are_md5 and self.location.scheme == "s3" and _MD5.fullmatch(known)
        return not checks or known.strip('"') == md5


__all__ = ["SMALL", "Store"]
