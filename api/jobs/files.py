"""The files of jobs: audio, request, plan, groups, transcripts, corrections; each job has a folder.

    files = DiskFiles(folder)                       # or ObjectFiles(store, folder, cache_bytes)
    name = files.put(job, "plan", b"...")           # "plan-<16 hexadecimal digits>", never used again
    with files.held(job, name) as path: ...
    files.delete_all(job)

A file is complete once `put` returns, and is never changed; a row says which one counts (`api.jobs.store`).
What a process that died was writing is in no row, and leaves with its job. Each folder has a row from before
its first file until after its last, so one without a row is nobody's. Methods that write raise OutputError
for a disk, StorageError for object storage that refuses or does not answer; those that read raise
FileNotFoundError and StorageError. Does not know what the files hold.

Objects are copied for the decoders and for clients. Copies are bounded and fetched once for all who need them
at a time. Those in use stay; others are removed, the longest unused first, when room is needed and after
`IDLE_S`. If all copies are in use, the next one waits for room.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from uuid import uuid4

from forescribe.asr.errors import StorageError

from ..errors import disk_errors

if TYPE_CHECKING:
    from forescribe.asr.storage.store import Store

JOBS = "jobs"
"""The folder of the jobs' folders in object storage."""

IDENTITY = "identity"
"""The file whose content tells this place from others."""

IDLE_S = 60.0
"""How long a copy is kept after its last use: a browser plays a recording by many requests."""


class DiskFiles:
    """Files at `<root>/<job>/<name>`, on disk once they are stored."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with disk_errors():
            root.mkdir(parents=True, exist_ok=True)
        self.place = f"folder:{self._identity()}"
        """Tells stores apart: processes with equal places see the same files."""
        self.requests: Mapping[str, int] = {}
        """Requests to object storage so far, by kind."""

    @property
    def free(self) -> int:
        """Free bytes on the local disk."""
        return shutil.disk_usage(self.root).free

    def put(self, job: str, role: str, data: bytes | BinaryIO) -> str:
        """Store the bytes, or the whole of a file, and return the name."""
        name = _new_name(role)
        path = self.root / job / name
        with disk_errors():
            try:
                path.parent.mkdir(exist_ok=True)
                with path.open("xb") as file:
                    _copy(data, file)
                    file.flush()
                    os.fsync(file.fileno())
                for folder in (path.parent, self.root):  # their new entries
                    _sync_folder(folder)
            except BaseException:
                with suppress(OSError):  # a read-only disk: it leaves with the job
                    path.unlink(missing_ok=True)
                raise
        return name

    def read(self, job: str, name: str) -> bytes:
        """The bytes of a small file."""
        return (self.root / job / name).read_bytes()

    def held(self, job: str, name: str) -> AbstractContextManager[Path]:
        """A local file, which exists for the block, and for some time after it."""
        path = self.root / job / name
        path.stat()
        return nullcontext(path)

    def delete(self, job: str, name: str) -> None:
        """Delete the file, if it exists."""
        path = self.root / job / name
        path.unlink(missing_ok=True)
        with suppress(OSError):  # the last file of a job that was erased takes the folder with it
            path.parent.rmdir()

    def delete_all(self, job: str) -> None:
        """Delete all files of a job."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.root / job)

    def jobs(self) -> set[str]:
        """The jobs that have files. Lists the whole store."""
        return {path.name for path in self.root.iterdir() if path.is_dir()}

    def probe(self) -> None:
        """Write and remove a byte."""
        _probe(self.root)

    def trim(self, idle_s: float = IDLE_S) -> None:
        """Remove local copies that nobody has used for so long; here there are none."""

    def _identity(self) -> str:
        """The name of this folder, for all processes that share it."""
        path, new = self.root / IDENTITY, self.root / f"{IDENTITY}-{uuid4().hex}"
        with disk_errors():
            if not path.exists():
                new.write_text(uuid4().hex)
                with suppress(FileExistsError):
                    os.link(new, path)  # complete, or not there; the first one stays
                new.unlink()
            return path.read_text()


class ObjectFiles:
    """As `DiskFiles`, objects at `<store>/jobs/<job>/<name>`.

    Args:
        store: the objects below the service's prefix.
        root: a local folder of this process alone, for copies.
        cache_bytes: of local copies.
    """

    def __init__(self, store: Store, root: Path, cache_bytes: int) -> None:
        self.objects, self.root = store, root
        with disk_errors():
            self.copies = Copies(root / "copies", cache_bytes)
        self.objects.create(IDENTITY, uuid4().hex.encode())
        self.place = f"objects:{self.objects.read(IDENTITY).decode()}"
        self.requests: Mapping[str, int] = self.objects.requests

    @property
    def free(self) -> int:
        return shutil.disk_usage(self.root).free

    def put(self, job: str, role: str, data: bytes | BinaryIO) -> str:
        name = _new_name(role)
        if not isinstance(data, bytes):
            data.flush()
        given = data if isinstance(data, bytes) else Path(f"/proc/self/fd/{data.fileno()}")
        self.objects.put(_key(job, name), given)
        return name

    def read(self, job: str, name: str) -> bytes:
        with _missing():
            return self.objects.read(_key(job, name))

    def held(self, job: str, name: str) -> AbstractContextManager[Path]:
        key = _key(job, name)
        return self.copies.held(
            key, lambda: self.objects.head(key).size, lambda path: self.objects.fetch(key, path)
        )

    def delete(self, job: str, name: str) -> None:
        self.copies.drop(_key(job, name))
        self.objects.delete(_key(job, name))

    def delete_all(self, job: str) -> None:
        for entry in self.objects.list(f"{JOBS}/{job}"):
            self.copies.drop(entry.key)
            self.objects.delete(entry.key)

    def jobs(self) -> set[str]:
        return {entry.key.split("/")[1] for entry in self.objects.list(JOBS)}

    def probe(self) -> None:
        _probe(self.root)
        key = f"probes/{uuid4().hex}"
        self.objects.put(key, b"\0")
        self.objects.delete(key)

    def trim(self, idle_s: float = IDLE_S) -> None:
        self.copies.trim(idle_s)


Files = DiskFiles | ObjectFiles


class Copies:
    """Copies in `folder`, which belongs to this object alone: files in it are removed at the start.

    Args:
        max_bytes: of all copies together. One that is larger is fetched when no other is in use.
    """

    def __init__(
        self, folder: Path, max_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.folder, self.max_bytes, self.clock = folder, max_bytes, clock
        self._changed = threading.Condition()
        self._copies: dict[str, _Copy] = {}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def held(
        self, key: str, size: Callable[[], int], fetch: Callable[[Path], object]
    ) -> Iterator[Path]:
        """The copy of an object, which exists for the block. Raises FileNotFoundError, and what `size` and
        `fetch` raise."""
        with _missing():
            copy = self._entered(key, size)
            try:
                with copy.fetching:
                    if not copy.complete:
                        fetch(copy.path)
                        copy.complete = True
            except BaseException:
                self._leave(key, copy)
                raise
        try:
            yield copy.path
        finally:
            self._leave(key, copy)

    def trim(self, idle_s: float) -> None:
        """Remove copies that nobody has used for so long."""
        with self._changed:
            oldest = self.clock() - idle_s
            for key in self._idle():
                if self._copies[key].used_s <= oldest:
                    self._remove(key)

    def drop(self, key: str) -> None:
        """Remove the copy of an object that was deleted, at the end of its use."""
        with self._changed:
            copy = self._copies.get(key)
            if copy is not None and not copy.users:
                self._remove(key)
            elif copy is not None:
                copy.complete = False  # removed by its last user

    def _entered(self, key: str, size: Callable[[], int]) -> _Copy:
        with self._changed:
            known = key in self._copies
        needed = 0 if known else size()  # a request, so not under the lock
        with self._changed:
            self._changed.wait_for(lambda: key in self._copies or self._has_room(needed))
            if key not in self._copies:
                self._copies[key] = _Copy(self.folder / uuid4().hex, needed)
            self._copies[key].users += 1
            return self._copies[key]

    def _leave(self, key: str, copy: _Copy) -> None:
        with self._changed:
            copy.users -= 1
            copy.used_s = self.clock()
            if not copy.users and not copy.complete:
                self._remove(key)
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        """Whether a copy of this size fits in, once the longest unused copies are removed."""
        for key in self._idle():
            if self._bytes() + size <= self.max_bytes:
                break
            self._remove(key)
        return not self._copies or self._bytes() + size <= self.max_bytes

    def _idle(self) -> list[str]:
        """Copies without a user, the longest unused first."""
        idle = [key for key, copy in self._copies.items() if not copy.users]
        return sorted(idle, key=lambda key: self._copies[key].used_s)

    def _remove(self, key: str) -> None:
        self._copies.pop(key).path.unlink(missing_ok=True)

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


def _new_name(role: str) -> str:
    return f"{role}-{secrets.token_hex(8)}"


def _key(job: str, name: str) -> str:
    return f"{JOBS}/{job}/{name}"


@contextmanager
def _missing() -> Iterator[None]:
    """Raise FileNotFoundError if there is no such object."""
    try:
        yield
    except StorageError as error:
        if error.code != "missing_file":
            raise
        raise FileNotFoundError("there is no such file") from error


def _copy(data: bytes | BinaryIO, file: BinaryIO) -> None:
    source = BytesIO(data) if isinstance(data, bytes) else data
    source.seek(0)
    shutil.copyfileobj(source, file, 1 << 20)


def _probe(folder: Path) -> None:
    path = folder / f"probe-{uuid4().hex}"
    with disk_errors():
        try:
            path.write_bytes(b"\0")
        finally:
            path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
