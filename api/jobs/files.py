"""The files of jobs: audio, request, plan, groups, transcripts, corrections; each job has a folder.

A file is complete once `put` returns, and is never changed; a row says which one counts (`api.jobs.store`).
What a process that died was writing is in no row, and leaves with its job. Methods that write raise
OutputError for a disk, StorageError for object storage that refuses or does not answer; those that read raise
FileNotFoundError and StorageError. Does not know what the files hold.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, BinaryIO, TypeVar
from uuid import uuid4

from forescribe.asr.errors import StorageError

from ..errors import disk_errors
from .reach import Reach

if TYPE_CHECKING:
    from forescribe.asr.storage.store import Store

T = TypeVar("T")

JOBS = "jobs"
"""The folder of the jobs' folders in object storage."""

IDENTITY = "identity"
"""The file whose content tells this place from others."""

INCOMPLETE = "new-"
"""How names begin of copies that are being fetched."""

IDLE_S = 300.0
"""How long a copy of an object is kept after its last use: a browser plays a recording by many requests."""


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
        """Store the bytes, or the whole of a file, and return the name, which is never used again."""
        name = _new_name(role)
        path = self.root / job / name
        with disk_errors():
            try:
                with _create(path) as file:
                    _copy(data, file)
                    file.flush()
                    os.fsync(file.fileno())
                with suppress(FileNotFoundError):  # erased since: the job's row refuses the name
                    _sync_folder(path.parent)
                _sync_folder(self.root)  # both have a new entry
            except BaseException:
                with suppress(OSError):  # a read-only disk: it leaves with the job
                    path.unlink(missing_ok=True)
                raise
        return name

    def read(self, job: str, name: str) -> bytes:
        """The bytes of a small file."""
        return (self.root / job / name).read_bytes()

    def local(self, job: str, name: str) -> Path:
        """A local file, to be opened at once."""
        path = self.root / job / name
        path.stat()
        return path

    def delete(self, job: str, name: str) -> None:
        """Delete the file, if it exists."""
        path = self.root / job / name
        path.unlink(missing_ok=True)
        with suppress(OSError):  # the last file of a job that was erased takes the folder with it
            path.parent.rmdir()

    def delete_all(self, job: str) -> None:
        """Delete all files of a job."""
        path = self.root / job
        while path.exists():
            try:
                shutil.rmtree(path)
            except OSError as error:  # another thread has added a file since, or deleted one
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                    raise

    def jobs(self) -> set[str]:
        """The jobs that have files. Lists the whole store."""
        return {path.name for path in self.root.iterdir() if path.is_dir()}

    def probe(self) -> None:
        """Write and remove a byte."""
        with disk_errors(), TemporaryFile(dir=self.root, buffering=0) as file:
            file.write(b"\0")

    def trim(self, idle_s: float = IDLE_S) -> None:
        """Remove copies of objects (`Copies`); here there are none."""

    def _identity(self) -> str:
        """The name of this folder, for all processes that share it."""
        path, new = self.root / IDENTITY, self.root / f"{IDENTITY}-{uuid4().hex}"
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
        root: a local folder, for copies.
        cache_bytes: of local copies.
    """

    def __init__(self, store: Store, root: Path, cache_bytes: int) -> None:
        self.objects, self.root = store, root
        away = partial(StorageError, "the object storage does not answer")
        self._reach = Reach(away, lambda error: getattr(error, "code", "") == away().code)
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
        self._ask(self.objects.put, _key(job, name), given)
        return name

    def read(self, job: str, name: str) -> bytes:
        with _missing():
            return self._ask(self.objects.read, _key(job, name))

    def local(self, job: str, name: str) -> Path:
        with _missing():
            fetch = partial(self._ask, self.objects.fetch, _key(job, name))
            return self.copies.copy(name, fetch)

    def delete(self, job: str, name: str) -> None:
        self.copies.drop(name)
        self._ask(self.objects.delete, _key(job, name))

    def delete_all(self, job: str) -> None:
        for entry in self._ask(self.objects.list, f"{JOBS}/{job}"):
            self.copies.drop(entry.key.rpartition("/")[2])
            self._ask(self.objects.delete, entry.key)

    def jobs(self) -> set[str]:
        return {entry.key.split("/")[1] for entry in self._ask(self.objects.list, JOBS)}

    def probe(self) -> None:
        with disk_errors(), TemporaryFile(dir=self.root, buffering=0) as file:
            file.write(b"\0")
        key = f"probes/{uuid4().hex}"
        self._ask(self.objects.put, key, b"\0")
        self._ask(self.objects.delete, key)

    def _ask(self, act: Callable[..., T], *given: object) -> T:
        """Raises StorageError at once while another request is not answered."""
        with self._reach.asking():
            return act(*given)

    def trim(self, idle_s: float = IDLE_S) -> None:
        self.copies.trim(idle_s)


Files = DiskFiles | ObjectFiles


class Copies:
    """Copies of objects in a folder, which several processes may use: a copy under its name is complete, and
    whoever has opened it keeps it. Those that nobody has asked for since `IDLE_S` are removed, also what dead
    processes left, and of all the longest unused where they are larger than `max_bytes`."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._lock, self._fetching = threading.Lock(), dict[str, Future[None]]()
        folder.mkdir(parents=True, exist_ok=True)

    def copy(self, name: str, fetch: Callable[[Path], object]) -> Path:
        """The copy of an object, whose name no other one has; it is fetched once for all who need it at a
        time. All of them raise what `fetch` raises, which removes what is incomplete."""
        path, mine = self.folder / name, Future[None]()
        with self._lock:
            with suppress(FileNotFoundError):
                os.utime(path, (time.time(), path.stat().st_mtime))
                return path
            fetching = self._fetching.setdefault(name, mine)
        if fetching is mine:
            try:
                fetch(new := self.folder / f"{INCOMPLETE}{uuid4().hex}")
                os.replace(new, path)
                mine.set_result(None)
            except BaseException as error:
                mine.set_exception(error)
            finally:
                del self._fetching[name]
        fetching.result()
        self.trim()
        return path

    def trim(self, idle_s: float = IDLE_S) -> None:
        """Remove what nobody has asked for since so long, and that for which there is no room."""
        oldest, room, copies = time.time() - idle_s, self.max_bytes, list[tuple[float, int, Path]]()
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):
                stat = path.stat()
                copies.append((max(stat.st_atime, stat.st_mtime), stat.st_size, path))
        for n, (used_at, size, path) in enumerate(sorted(copies, reverse=True)):
            room -= size
            idle, complete = used_at <= oldest, not path.name.startswith(INCOMPLETE)
            if idle or (n and complete and room < 0):
                path.unlink(missing_ok=True)

    def drop(self, name: str) -> None:
        """Remove the copy of an object that is deleted."""
        (self.folder / name).unlink(missing_ok=True)


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


def _create(path: Path) -> BinaryIO:
    """A new file, in a folder that others may remove while it is empty."""
    while True:
        with suppress(FileExistsError):
            path.parent.mkdir()
        with suppress(FileNotFoundError):
            return path.open("xb")


def _copy(data: bytes | BinaryIO, file: BinaryIO) -> None:
    source = BytesIO(data) if isinstance(data, bytes) else data
    source.seek(0)
    shutil.copyfileobj(source, file, 1 << 20)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
