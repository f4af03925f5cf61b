"""Store: the objects below a location, as far as all services are alike.

Keys are relative to the store's location. All methods may be called from several threads. Requests are
repeated by the library of each service while their failure is temporary; what is raised then is final. Knows
nothing of what becomes of objects and files.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..audio.opening import write_all
from ..errors import ForescribeError, output_errors
from .errors import LocatedError, UnavailableError, UnsupportedError
from .locations import Entry, Location

SMALL = 64 << 20
"""Bytes of the largest object that `read` returns."""

PAUSE_S = 0.5
"""Seconds before the second attempt of a copy; they double, with jitter."""


class Store:
    """The objects below `location`; of a service that can only be read, unless a method is overridden.

    `connection` is that to the bucket, and `requests` counts its requests by kind.
    """

    attempts = 1
    """Attempts of a copy: one where the library of the service repeats what fails."""

    def __init__(self, location: Location, connection: Any, requests: Counter[str]) -> None:
        self.location, self.connection, self.requests = location, connection, requests
        self._counting = threading.Lock()

    def list(self, prefix: str = "") -> list[Entry]:
        """All objects below the folder `prefix`, in the order of their keys; none if there is no such
        folder."""
        raise NotImplementedError

    def head(self, key: str) -> Entry:
        """What the store knows about an object. Raises MissingError."""
        raise NotImplementedError

    def reading(self, key: str) -> AbstractContextManager[tuple[Entry, Iterator[bytes]]]:
        """What the store knows about an object, and its bytes in pieces. Raises MissingError."""
        raise NotImplementedError

    def put(self, key: str, data: bytes | Path) -> None:
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
        with self.reading(key) as (_, pieces):
            for piece in pieces:
                data += piece
                if len(data) > SMALL:
                    text = f"more than {SMALL} bytes are too many to read at once"
                    raise UnsupportedError(self.place(key), text)
        return bytes(data)

    def fetch(
        self, key: str, path: Path, *, progress: Callable[[int], object] = lambda done: None
    ) -> Entry:
        """Copy an object to a new file, in pieces. `progress` receives the number of bytes so far, and may
        raise.

        Raises MissingError, and OutputError (`storage_full`, `unwritable_output`) for the file; what is
        incomplete is removed.
        """
        attempt = 1
        while True:
            try:
                return self._copy(key, path, progress)
            except BaseException as error:
                with suppress(OSError):
                    path.unlink()
                if not isinstance(error, UnavailableError) or attempt >= self.attempts:
                    raise
            time.sleep(random.random() * PAUSE_S * 2**attempt)
            attempt += 1

    def _copy(self, key: str, path: Path, progress: Callable[[int], object]) -> Entry:
        done = 0
        with (
            _disk_errors(path),
            path.open("wb", buffering=0) as file,
            self.reading(key) as (entry, pieces),
        ):
            for piece in pieces:
                with _disk_errors(path):  # else it would be taken for one of the store
                    write_all(cast(BinaryIO, file), piece)
                done += len(piece)
                progress(done)
            if done < entry.size:
                raise UnavailableError(self.place(key), "broke off; try again later")
            return replace(entry, key=key)

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
        with self._counting:
            self.requests[kind] += 1
        try:
            yield
        except ForescribeError:
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
