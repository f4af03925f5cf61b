"""Blobs as objects in S3, Google Cloud Storage or Azure, for services on several machines.

    blobs = ObjectBlobs(open_store(Location.parse("s3://bucket/service")), folder, cache_bytes=4 << 30)
    name = blobs.put(b"...")             # "<sha256>-<16 hexadecimal digits>"
    with blobs.held(name) as path: ...   # a local copy

A name is the SHA-256 of the bytes and a random number, so no name is used twice: a late or repeated deletion
(of a process that was suspended, of a request that was delayed in the network) never hits an object that
somebody has stored since. No conditional writes are needed. What is read is compared with its hash. Which
blobs are referred to, and who may delete one, is decided in the database (`api.jobs.references`).

Drafts and copies for the decoders are local files. Copies are bounded (`BlobCache`) and fetched once for all
who need them at a time. Those in use are never removed; others are, the longest unused first, when room is
needed and after `IDLE_S`. If all copies are in use, the next one waits for room.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from forescribe.asr.errors import StorageError

from ..errors import disk_errors
from .blobs import BlobDraft, BlobStore

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from forescribe.asr.storage.store import Store


NAME = re.compile(r"[0-9a-f]{64}-[0-9a-f]{16}")

IDENTITY = "identity"
"""The object whose content tells this store from others."""

IDLE_S = 60.0
"""How long a copy is kept after its last use: a browser plays a recording by many requests."""


class ObjectBlobs(BlobStore):
    """Blobs at `<store>/blobs/<aa>/<name>`.

    Args:
        store: the objects below the service's prefix.
        folder: a local folder of this process alone, for drafts and copies.
        cache_bytes: of local copies.
    """

    marked = True

    def __init__(self, store: Store, folder: Path, cache_bytes: int) -> None:
        super().__init__(folder)
        self.objects = store
        with disk_errors():
            for path in self._drafts.iterdir():  # left by a process that died
                path.unlink()
            self.cache = BlobCache(folder / "copies", cache_bytes, self._size, self._fetch)
        self.place = f"objects:{self._identity()}"

    def draft(self) -> ObjectDraft:
        return ObjectDraft(self, self._drafts / secrets.token_hex(16))

    def put(self, data: bytes) -> str:
        name = _new_name(hashlib.sha256(data).hexdigest())
        self.objects.put(_key(name), data)
        return name

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError, StorageError."""
        with self._found(name) as key:
            data = self.objects.read(key)
        if hashlib.sha256(data).hexdigest() != _hash(name):
            raise StorageError("an object of the job store is damaged", code="internal_error")
        return data

    def held(self, name: str) -> AbstractContextManager[Path]:
        """A local copy, which exists for the block. Raises FileNotFoundError, StorageError, OutputError."""
        return self.cache.held(name)

    def local(self, name: str) -> Path:
        """A local copy to be opened at once: it is removed some time after its last use. Raises as `held`
        does."""
        with self.cache.held(name) as path:
            return path

    def delete(self, name: str) -> None:
        self.cache.drop(name)
        self.objects.delete(_key(name))

    def names(self, older_s: float = 0.0) -> Iterator[str]:
        """The blobs in a listing (a request for each 1000). Ages are by the store's clock against this
        machine's, so `older_s` is approximate."""
        newest = time.time() - older_s
        for entry in self.objects.list("blobs"):
            name = entry.key.rpartition("/")[2]
            if NAME.fullmatch(name) and (not older_s or (entry.modified or 0.0) <= newest):
                yield name

    def probe(self) -> None:
        """Write and remove a local byte and an object."""
        super().probe()
        key = f"probes/{secrets.token_hex(8)}"
        self.objects.put(key, b"\0")
        self.objects.delete(key)

    def sweep(self, older_s: float) -> int:
        """Also copies that are not in use."""
        return super().sweep(older_s) + self.cache.trim()

    def close(self) -> None:
        """Remove the local copies."""
        self.cache.trim(0.0)

    @property
    def requests(self) -> Mapping[str, int]:
        """Those of this process, by kind."""
        return self.objects.requests

    def shared_lock(self) -> AbstractContextManager[None]:
        """Marks in the database do what locks do on one machine."""
        return nullcontext()

    def exclusive_lock(self) -> AbstractContextManager[None]:
        """As `shared_lock`."""
        return nullcontext()

    def _size(self, name: str) -> int:
        with self._found(name) as key:
            return self.objects.head(key).size

    def _fetch(self, name: str, path: Path) -> None:
        with self._found(name) as key:
            self.objects.fetch(key, path)
        with path.open("rb") as file:
            whole = hashlib.file_digest(file, "sha256").hexdigest() == _hash(name)
        if not whole:
            path.unlink()
            raise StorageError("an object of the job store is damaged", code="internal_error")

    @contextmanager
    def _found(self, name: str) -> Iterator[str]:
        """The key of a blob. Raises FileNotFoundError if there is no such object."""
        try:
            yield _key(name)
        except StorageError as error:
            if error.code != "missing_file":
                raise
            raise FileNotFoundError("there is no such blob") from error

    def _identity(self) -> str:
        """The content of the object that the first process has created here."""
        own = secrets.token_hex(16).encode()
        self.objects.create(IDENTITY, own)
        return self.objects.read(IDENTITY).decode()


class ObjectDraft(BlobDraft):
    """A draft whose commit stores an object."""

    def __init__(self, blobs: ObjectBlobs, path: Path) -> None:
        super().__init__(path)
        self.blobs = blobs

    def commit(self) -> str:
        self.flush()
        name = _new_name(self.name)
        self.blobs.objects.put(_key(name), self.path)
        self.discard()
        return name

    def flush(self) -> None:
        """Complete the local file; it is not synchronised, because it does not outlive the process."""
        with disk_errors():
            self._file.flush()


class BlobCache:
    """Copies in `folder`, which belongs to this object alone: files in it are removed at the start.

    Args:
        max_bytes: of all copies together. One that is larger is fetched when no other is in use.
        size: the size of a blob. Raises FileNotFoundError.
        fetch: writes a blob to a new file.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        size: Callable[[str], int],
        fetch: Callable[[str, Path], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.max_bytes, self.clock = folder, max_bytes, clock
        self._size, self._fetch = size, fetch
        self._changed = threading.Condition()
        self._copies: dict[str, _Copy] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            path.unlink()

    @contextmanager
    def held(self, name: str) -> Iterator[Path]:
        """The copy of a blob, which exists for the block. Raises FileNotFoundError, and what `fetch`
        raises."""
        copy = self._enter(name)
        try:
            with copy.fetching:
                if not copy.complete:
                    self._fetch(name, copy.path)
                    copy.complete = True
            yield copy.path
        finally:
            self._leave(name, copy)

    @property
    def bytes(self) -> int:
        """Bytes of all copies."""
        with self._changed:
            return self._bytes()

    def trim(self, idle_s: float = IDLE_S) -> int:
        """Remove copies that nobody has used for `idle_s` seconds, and return their number."""
        with self._changed:
            oldest = self.clock() - idle_s
            return self._remove(
                [name for name in self._idle() if self._copies[name].used_s <= oldest]
            )

    def drop(self, name: str) -> None:
        """Remove the copy of a blob that was deleted, at the end of its use."""
        with self._changed:
            copy = self._copies.get(name)
            if copy is not None and not copy.users:
                self._remove([name])
            elif copy is not None:
                copy.complete = False  # removed by its last user

    def _enter(self, name: str) -> _Copy:
        with self._changed:
            known = name in self._copies
        size = 0 if known else self._size(name)  # a request, so not under the lock
        with self._changed:
            self._changed.wait_for(lambda: name in self._copies or self._has_room(size))
            copy = self._copies.get(name)
            if copy is None:
                copy = _Copy(self.folder / uuid4().hex, size or self._size(name))
                self._copies[name] = copy
            copy.users += 1
            return copy

    def _leave(self, name: str, copy: _Copy) -> None:
        with self._changed:
            copy.users -= 1
            copy.used_s = self.clock()
            if not copy.users and not copy.complete:
                self._remove([name])
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        """Whether a copy of this size fits in, once the longest unused copies are removed."""
        for name in self._idle():
            if self._bytes() + size <= self.max_bytes:
                break
            self._remove([name])
        return not self._copies or self._bytes() + size <= self.max_bytes

    def _idle(self) -> list[str]:
        """Copies without a user, the longest unused first."""
        idle = [name for name, copy in self._copies.items() if not copy.users]
        return sorted(idle, key=lambda name: self._copies[name].used_s)

    def _remove(self, names: list[str]) -> int:
        for name in names:
            self._copies.pop(name).path.unlink(missing_ok=True)
        return len(names)

    def _bytes(self) -> int:
        return sum(copy.size for copy in self._copies.values())


@dataclass
class _Copy:
    path: Path
    size: int
    users: int = 0
    used_s: float = 0.0
    fetching: threading.Lock = field(default_factory=threading.Lock)
    complete: bool = False


def _new_name(digest: str) -> str:
    return f"{digest}-{secrets.token_hex(8)}"


def _hash(name: str) -> str:
    return name.partition("-")[0]


def _key(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a blob's name")
    return f"blobs/{name[:2]}/{name}"
