"""Store: the objects below a location, as far as all services are alike.

    store = Stores().at(Location.parse("s3://out/2026"))    # asr.storage.stores
    store.put("a.srt", b"...")
    store.create("records/9c41.json", b"...")      # False: it exists already
    store.fetch("a.mp3", Path("a.mp3"))

Keys are relative to the store's location. All methods may be called from several threads. Requests are
repeated by the library of each service while their failure is temporary; what is raised then is final. A copy
to a file that breaks off continues where it was. Knows nothing of what becomes of objects and files.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..audio.opening import write_all
from ..errors import output_errors
from .errors import LocatedError, UnavailableError, UnsupportedError
from .locations import Entry, Location

SMALL = 64 << 20
"""Bytes of the largest object that `read` returns."""

PAUSE_S = 0.5
"""Seconds before the second attempt of a copy that broke off; they double, with jitter."""


@dataclass(frozen=True)
class OpenObject:
    """An object that is being read: what it is, and its bytes from `start` on."""

    entry: Entry
    pieces: Iterator[bytes]
    start: int


class Store:
    """The objects below `location`; of a service that can only be read, unless a method is overridden.

    `connection` is what `opened` has made for the bucket, and `requests` counts its requests by kind.
    """

    attempts = 2
    """Attempts of a copy without progress: where the library repeats requests, one more."""

    def __init__(self, location: Location, connection: Any, requests: Counter[str]) -> None:
        self.location, self.connection, self.requests = location, connection, requests
        self._counting = threading.Lock()

    @staticmethod
    def opened(location: Location, patience_s: float) -> Any:
        """The connection to the bucket of a location."""
        raise NotImplementedError

    def list(self, prefix: str = "") -> list[Entry]:
        """All objects below the folder `prefix`, in the order of their keys; none if there is no such
        folder."""
        raise NotImplementedError

    def head(self, key: str) -> Entry:
        """What the store knows about an object. Raises MissingError."""
        raise NotImplementedError

    def reading(
        self, key: str, start: int = 0, etag: str | None = None
    ) -> AbstractContextManager[OpenObject]:
        """Read from byte `start` on. With `etag`, raises ChangedError if the object has another one."""
        raise NotImplementedError

    def put(self, key: str, data: bytes | Path) -> Entry:
        """Write an object, atomically, in parts if it is large; replaces an existing one."""
        raise self._read_only()

    def create(self, key: str, data: bytes) -> bool:
        """Write an object if there is none; False if there is one that is not `data`.

        A write whose reply was lost is found by reading the object, so `data` should hold something that no
        other writer writes, such as a random number.
        """
        raise self._read_only()

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        raise self._read_only()

    def read(self, key: str) -> bytes:
        """The bytes of a small object. Raises MissingError, and UnsupportedError above `SMALL` bytes."""
        data = bytearray()
        with self.reading(key) as reading:
            size = reading.entry.size
            for piece in () if size > SMALL else reading.pieces:
                data += piece
                size = max(size, len(data))  # not every server says it, or the truth
                if size > SMALL:
                    break
        if size > SMALL:
            raise UnsupportedError(
                self.place(key), f"{size} bytes or more are too many to read at once"
            )
        return bytes(data)

    def fetch(
        self,
        key: str,
        path: Path,
        *,
        progress: Callable[[int], object] = lambda done: None,
    ) -> Entry:
        """Copy one version of an object to a new file, in pieces. `progress` receives the number of bytes so
        far, and may raise.

        Raises MissingError, ChangedError if the object changes between two attempts, and OutputError
        (`storage_full`, `unwritable_output`) for the file; what is incomplete is removed.
        """
        done, etag, tried = 0, None, 0
        try:
            with _disk_errors(path):
                path.open("wb").close()
            while True:
                before = done
                try:
                    with self.reading(key, done, etag) as reading:
                        etag = etag or reading.entry.etag
                        done = reading.start
                        with _disk_errors(path):
                            file = path.open("ab", buffering=0)  # a buffer would raise when closed
                            if file.tell() > done:  # the server has no ranges
                                file.truncate(done)
                        with file:
                            for piece in reading.pieces:
                                with _disk_errors(path):
                                    write_all(cast(BinaryIO, file), piece)
                                done += len(piece)
                                progress(done)
                    if done < reading.entry.size:
                        raise UnavailableError(self.place(key), "broke off")
                    return replace(reading.entry, key=key)
                except UnavailableError:
                    tried = 1 if done > before else tried + 1
                    if tried >= self.attempts:
                        raise
                time.sleep(random.random() * PAUSE_S * 2**tried)
        except BaseException:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            raise

    def check_create(self) -> None:
        """Check that `create` refuses to replace an object: some stores ignore the condition. Costs four
        requests. Raises UnsupportedError."""
        key = f"_forescribe/probe-{secrets.token_hex(16)}"
        self.create(key, b"first")
        try:
            refused = not self.create(key, b"second")
        finally:
            with suppress(Exception):  # leaving an empty object behind is no reason to fail
                self.delete(key)
        if not refused:
            raise UnsupportedError(
                self.location,
                "this store ignores conditions (If-None-Match), so results could be recorded twice; "
                "write to another store, or to a folder",
            )

    def place(self, key: str) -> Location:
        """The location of an object, for messages."""
        return self.location / key if key else self.location

    @contextmanager
    def _request(self, kind: str, key: str) -> Iterator[None]:
        """Counts a request for an object, and raises what its service raises as errors of this package."""
        self._count(kind)
        with self._errors(key):
            yield

    def _count(self, kind: str) -> None:
        with self._counting:
            self.requests[kind] += 1

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except LocatedError:
            raise
        except BaseException as error:  # a panic of Rust is no Exception
            if (meant := self._meant(self.place(key), error)) is None:
                raise
            raise meant from None  # its text may hold signatures

    def _meant(self, location: Location, error: BaseException) -> LocatedError | None:
        """What an exception of the service's library means; None for one that is not its own."""
        raise NotImplementedError

    def _read_only(self) -> UnsupportedError:
        return UnsupportedError(
            self.location, "can only be read: write to s3://, gs://, az:// or a folder"
        )


def _disk_errors(path: Path) -> AbstractContextManager[None]:
    return output_errors(
        f"the local copy {str(path)!r}", "free some space, or name another folder with --spool"
    )
