"""Stores: objects below a location, with repeated requests and conditional writes.

    stores = Stores()                              # one connection per bucket
    store = stores.at(Location.parse("s3://out/2026"))
    store.put("a.srt", b"...")
    store.create("records/9c41.json", b"...")      # False: it exists already

Keys are relative to the store's location. All methods may be called from several threads.

A request is repeated while its failure is temporary (throttling, resets, time-outs), ever later, a bounded
time (`Retries`); what is raised then is final. Waiting times are exponential with full jitter, random between
0 and a bound that doubles, so that workers that were throttled together do not return together (M. Brooker,
"Exponential Backoff and Jitter", AWS Architecture Blog, 2015). Objects are copied to files in pieces; a copy
that breaks off continues where it was (`Copy`).

Knows which scheme is served by which backend; nothing of what becomes of objects and files.
"""

from __future__ import annotations

import hashlib
import random
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from ..errors import output_errors
from .errors import (
    ExistsError,
    LocatedError,
    UnavailableError,
    UnsupportedError,
)
from .locations import WEB, Backend, Entry, Location

T = TypeVar("T")

SMALL = 64 << 20
"""Bytes of the largest object that `read` returns."""

_MD5 = re.compile(r'"?[0-9a-f]{32}"?')


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
            from .read_only_backends import WebBackend

            assert isinstance(backend, WebBackend)
            return backend.at(location)  # its signature is for one object
        return backend


def open_store(location: Location, *, retries: Retries | None = None) -> Store:
    """The store at one location; see `Stores.at`."""
    return Stores(retries).at(location)


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
        progress: Callable[[int], object] = lambda done: None,
    ) -> Entry:
        """Copy an object to a new file, in pieces; after a break it continues where it was.

        Where the tag is an MD5, the copy is compared with it; a damaged copy is fetched again. `progress`
        receives the number of bytes so far, and may raise. Raises MissingError, ChangedError if the object
        changes between two attempts, and OutputError (`storage_full`, `unwritable_output`) for the file; what
        is incomplete is removed.
        """
        seen: set[str] = set()
        try:
            for _ in range(3):
                copy = Copy(self.backend, self._key(key), path, progress)
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

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        self.retries.call(lambda: self.backend.delete(self._key(key)))

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


@dataclass(frozen=True)
class Retries:
    """When to try again: `attempts` in all, at most `longest_s` apart, none begun after `total_s`.

    `told` is called before the first pause of a request, with the error and the seconds that all of its
    pauses may take. `sleep`, `clock` and `draw`, a random number in [0, 1), are arguments for tests."""

    attempts: int = 8
    first_s: float = 0.25
    longest_s: float = 20.0
    total_s: float = 180.0
    sleep: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic
    draw: Callable[[], float] = field(default=random.random)
    told: Callable[[LocatedError, float], object] = lambda error, seconds: None

    @property
    def patience_s(self) -> float:
        """The seconds that the pauses of a request take at most."""
        pauses = (min(self.longest_s, self.first_s * 2.0**n) for n in range(1, self.attempts))
        return min(self.total_s, sum(pauses))

    def call(self, request: Callable[[], T]) -> T:
        """Return what `request` returns. Raises its error if that is not temporary, or the last one, with
        the number of attempts."""
        started, attempt = self.clock(), 1
        while True:
            try:
                return request()
            except LocatedError as error:
                pause = self.draw() * min(self.longest_s, self.first_s * 2**attempt)
                late = self.clock() - started + pause > self.total_s
                if not error.temporary:
                    raise
                if attempt >= self.attempts or late:
                    text = f"{error.reason} ({attempt} attempts)"
                    raise type(error)(error.location, text, code=error.code) from error
                if attempt == 1:
                    self.told(error, self.patience_s)
            self.sleep(pause)
            attempt += 1


def telling(say: Callable[[str], None]) -> Retries:
    """The usual attempts, which say that they go on: once for each server."""
    known: set[str] = set()

    def told(error: LocatedError, seconds: float) -> None:
        server = f"{error.location.scheme}://{error.location.host}"
        if server not in known:
            known.add(server)
            say(f"{error}: trying again for up to {seconds:.0f} s")

    return Retries(told=told)


class Copy:
    """One copy, of one version of the object. `progress` receives the number of bytes so far and may raise,
    which ends the copy."""

    def __init__(
        self,
        backend: Backend,
        key: str,
        path: Path,
        progress: Callable[[int], object],
    ) -> None:
        self.backend, self.key, self.path, self.progress = backend, key, path, progress
        self.done = 0  # bytes
        self._etag: str | None = None  # of the version, once it is known
        self._entry: Entry | None = None
        self._digest = hashlib.md5(usedforsecurity=False)

    @property
    def md5(self) -> str:
        """The MD5 of what was copied."""
        return self._digest.hexdigest()

    def run(self, retries: Retries) -> Entry:
        """Copy the object; attempts count from the last progress. Raises LocatedError, and OutputError for
        the file."""
        with self._disk_errors():
            self.path.open("wb").close()
        while True:
            before = self.done
            try:
                return retries.call(self._attempt)
            except UnavailableError:
                if self.done <= before:
                    raise

    def _attempt(self) -> Entry:
        if self._entry and 0 < self._entry.size == self.done:
            return self._entry  # it broke off after the last byte
        with self.backend.read(self.key, self.done, self._etag) as reading:
            self._entry = reading.entry
            if reading.start != self.done:  # the server has no ranges
                self._digest, self.done = hashlib.md5(usedforsecurity=False), reading.start
            self._etag = self._etag or reading.entry.etag
            with self._disk_errors():
                file = self.path.open("ab", buffering=0)  # a buffer would raise again when closed
                if file.tell() > self.done:
                    file.truncate(self.done)
            with file:
                for piece in reading.pieces:
                    with self._disk_errors():
                        rest = memoryview(piece)
                        while rest:
                            rest = rest[file.write(rest) :]
                    self._digest.update(piece)
                    self.done += len(piece)
                    self.progress(self.done)
            if self.done < reading.entry.size:
                raise UnavailableError(self.backend.root / self.key, "broke off")
            return reading.entry

    def _disk_errors(self) -> AbstractContextManager[None]:
        return output_errors(
            f"the local copy {str(self.path)!r}",
            "free some space, or name another folder with --spool",
        )


def _backend(location: Location) -> Backend:
    if location.scheme in WEB:
        from .read_only_backends import WebBackend

        return WebBackend(location)
    if location.scheme == "hf":
        from .read_only_backends import HubBackend

        return HubBackend(location)
    from .obstore_backend import ObstoreBackend

    return ObstoreBackend(location)
