"""Repositories of the Hugging Face Hub (`hf://datasets/org/name/...`): read only.

Through huggingface-hub's file system, which reads HF_TOKEN and HF_ENDPOINT and repeats requests of its
own. Knows files of repositories; nothing of models.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .backends import Entry, Reading
from .locations import Location
from .server_errors import by_status, missing
from .storage_errors import ChangedError, LocatedError, UnavailableError, UnsupportedError

if TYPE_CHECKING:
    from huggingface_hub import HfFileSystem

PIECE = 4 << 20
"""Bytes that are read at a time."""


class HubBackend:
    """Requests to the repository of `location`."""

    def __init__(self, location: Location, files: HfFileSystem | None = None) -> None:
        from huggingface_hub import HfFileSystem

        self.root = location.root
        self.requests: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._files = files or HfFileSystem()

    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        self._count("list")
        with self._errors(self.root / prefix):
            try:
                found: Any = self._files.find(self._path(prefix), detail=True)
            except FileNotFoundError:
                if prefix:
                    return  # an empty folder, as in a bucket
                raise
        entries = [self._entry(info) for info in found.values() if info["type"] == "file"]
        yield from (
            e for e in sorted(entries, key=lambda e: e.key) if after is None or e.key > after
        )

    def head(self, key: str) -> Entry:
        self._count("head")
        with self._errors(self.root / key):
            return self._entry(self._files.info(self._path(key)))

    @contextmanager
    def read(self, key: str, start: int = 0, etag: str | None = None) -> Iterator[Reading]:
        entry = self.head(key)
        if etag and entry.etag != etag:
            raise ChangedError(self.root / key, "changed while it was used; run the command again")
        self._count("get")
        with self._errors(self.root / key):
            file = self._files.open(self._path(key), "rb", block_size=PIECE)
        with file:
            yield Reading(entry, self._pieces(key, file, start), start)

    def put(self, key: str, data: bytes | Path) -> Entry:
        raise self._read_only()

    def create(self, key: str, data: bytes) -> Entry:
        raise self._read_only()

    def replace(self, key: str, data: bytes, etag: str) -> Entry:
        raise self._read_only()

    def delete(self, key: str) -> None:
        raise self._read_only()

    def _pieces(self, key: str, file: Any, start: int) -> Iterator[bytes]:
        with self._errors(self.root / key):
            file.seek(start)
            while piece := file.read(PIECE):
                yield piece

    def _path(self, key: str) -> str:
        return f"{self.root.host}/{key}".rstrip("/")

    def _entry(self, info: dict[str, Any]) -> Entry:
        name = str(info["name"]).removeprefix(self.root.host).lstrip("/")
        large = info.get("lfs") or {}
        tag = (large.get("sha256") if isinstance(large, dict) else None) or info.get("blob_id")
        return Entry(name, int(info["size"]), tag)

    def _read_only(self) -> UnsupportedError:
        return UnsupportedError(
            self.root, "hf:// can only be read: write to s3://, gs://, az:// or a folder"
        )

    def _count(self, kind: str) -> None:
        with self._counting:
            self.requests[kind] += 1

    @contextmanager
    def _errors(self, location: Location) -> Iterator[None]:
        from huggingface_hub.errors import HfHubHTTPError

        try:
            yield
        except LocatedError:
            raise
        except HfHubHTTPError as error:
            status = getattr(error.response, "status_code", 0) or 0
            raise by_status(location, status, "") from None
        except FileNotFoundError:
            raise missing(location) from None
        except (_network_error(), OSError, ValueError, NotImplementedError) as error:
            raise UnavailableError(
                location, f"the Hub does not answer ({type(error).__name__}); check the network"
            ) from None


def _network_error() -> type[Exception]:
    """The errors of the library that huggingface-hub makes requests with: httpx or httpx2, by its version."""
    from huggingface_hub.errors import HfHubHTTPError

    for kind in HfHubHTTPError.__mro__:
        if kind.__name__ == "HTTPError" and issubclass(kind, Exception):
            return kind
    return OSError


__all__ = ["HubBackend"]
