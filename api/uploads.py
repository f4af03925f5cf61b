"""Resumable uploads: files that arrive in pieces, over connections that break and servers that restart.

In the folder, `<id>.part` holds the bytes and `<id>.json` their description, with the number of those that
are known to be on disk. The offset is the size of the part file and is not stored elsewhere; bytes beyond
the known ones are cut off at the next start, because a failing disk or power loss may have lost them.
Several processes may use the folder; replicas with folders of their own need a proxy that sends a client to
the same one each time.

An upload is open from its creation until it becomes a job, is deleted or expires: so long it holds a file
that its client may fill to its length. Therefore the open uploads of a client are bounded.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO

from .errors import ApiError, disk_errors
from .settings import Settings

ID = re.compile(r"up_[0-9a-f]{32}")

SYNC_BYTES = 16 << 20
"""At most so many bytes are lost in a power failure."""


@dataclass(frozen=True)
class Upload:
    """An upload as its description has it, and its current offset."""

    id: str
    tenant: str  # the owner: the name of the API key
    length: int
    label: str | None
    client: str = ""  # for whom it counts; empty: the owner
    synced: int = 0  # bytes that are known to be on disk
    offset: int = 0


class Uploads:
    """The uploads in a folder, by id and owner. The methods raise ApiError `not_found`, also for uploads of
    others; `locked` while another request uses the upload; `conflict` for a wrong offset or an incomplete
    one."""

    def __init__(
        self, folder: Path, settings: Settings, clock: Callable[[], float] = time.time
    ) -> None:
        self.folder, self.settings, self.clock = folder, settings, clock

    def create(
        self, owner: str, length: int, label: str | None = None, *, client: str = ""
    ) -> Upload:
        """Create an empty upload, which counts for the client, by default for the owner. Raises ApiError
        `empty_file`, `file_too_large`, `rate_limited` if the client has too many; OutputError."""
        if not length:
            text = "the file is empty (Upload-Length: 0): there is nothing to transcribe in it"
            raise ApiError("empty_file", text, param="Upload-Length")
        if length > (most := self.settings.max_upload_bytes):
            raise ApiError("file_too_large", f"the upload is larger than {most} bytes")
        upload = Upload(f"up_{secrets.token_hex(16)}", owner, length, label, client)
        with disk_errors():
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder, os.O_RDONLY)
            try:  # one at a time, in all processes: each counts those made before
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._check_open(client or owner)
                self._path(upload.id, "part").touch(0o600)
                self._describe(upload)  # from here on it exists
            finally:
                os.close(lock)
        return upload

    def get(self, id: str, owner: str) -> Upload:
        upload = self._described(id)
        if upload is None or upload.tenant != owner:
            raise ApiError("not_found", "there is no such upload")
        return upload

    @contextmanager
    def appending(self, id: str, owner: str, offset: int) -> Iterator[UploadPart]:
        """Continue an upload at its offset. Everything written is kept at the end of the block, also if it
        raises. Raises OutputError."""
        with self._open(id, owner) as (upload, file):
            if offset != upload.offset:
                raise ApiError("conflict", f"the upload is at {upload.offset}, not at {offset}")
            part = UploadPart(upload, file, self._describe)
            try:
                yield part
            finally:
                part.sync()

    @contextmanager
    def whole(self, id: str, owner: str) -> Iterator[BinaryIO]:
        """The bytes of a complete upload, locked."""
        with self._open(id, owner) as (upload, file):
            if upload.offset < upload.length:
                text = f"the upload has {upload.offset} of {upload.length} bytes"
                raise ApiError("conflict", text)
            yield file

    def delete(self, id: str, owner: str) -> None:
        with self._open(id, owner):
            self._remove(id)

    def recover(self) -> None:
        """Cut off bytes that may not be on disk. Call it once at the start."""
        for upload in self._all():
            if upload.offset > upload.synced:
                with suppress(FileNotFoundError):
                    os.truncate(self._path(upload.id, "part"), upload.synced)

    def expire(self, older_s: float) -> None:
        """Remove uploads that were not written to for `older_s` seconds, and bytes without a description: a
        process was killed between the two files."""
        for path in self.folder.glob("up_*.part"):
            with suppress(FileNotFoundError, ApiError):
                if path.stat().st_mtime < self.clock() - older_s:
                    with self._locked(path.stem):
                        self._remove(path.stem)

    def _check_open(self, client: str) -> None:
        """Read from the files: a counter in memory would differ between processes. 30 us for each."""
        count = sum((upload.client or upload.tenant) == client for upload in self._all())
        if count >= self.settings.max_open_uploads_per_key:
            text = (
                f"there are {count} unfinished uploads already, the maximum: finish some and make them "
                "jobs, or delete them"
            )
            raise ApiError("rate_limited", text)

    def _all(self) -> Iterator[Upload]:
        found = map(self._described, (path.stem for path in self.folder.glob("up_*.json")))
        return filter(None, found)

    def _described(self, id: str) -> Upload | None:
        if ID.fullmatch(id):
            with suppress(FileNotFoundError):
                record = json.loads(self._path(id, "json").read_text())
                return Upload(id, offset=self._path(id, "part").stat().st_size, **record)
        return None

    def _describe(self, upload: Upload) -> None:
        record = {k: v for k, v in asdict(upload).items() if k not in ("id", "offset")}
        new = self._path(upload.id, "new")
        new.write_text(json.dumps(record))
        os.replace(new, self._path(upload.id, "json"))

    def _remove(self, id: str) -> None:
        for kind in ("json", "new", "part"):
            self._path(id, kind).unlink(missing_ok=True)

    def _path(self, id: str, kind: str) -> Path:
        return self.folder / f"{id}.{kind}"

    @contextmanager
    def _open(self, id: str, owner: str) -> Iterator[tuple[Upload, BinaryIO]]:
        """An upload and its file, for one at a time."""
        self.get(id, owner)
        with self._locked(id) as file:
            yield self.get(id, owner), file

    @contextmanager
    def _locked(self, id: str) -> Iterator[BinaryIO]:
        try:
            file = self._path(id, "part").open("r+b")
        except FileNotFoundError as error:
            raise ApiError("not_found", "there is no such upload") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ApiError("locked", "another request is writing to this upload") from error
            yield file


class UploadPart:
    """An upload while it is written; `length` is that of the whole upload."""

    def __init__(self, upload: Upload, file: BinaryIO, describe: Callable[[Upload], None]) -> None:
        self.offset, self.length = upload.offset, upload.length
        self._upload, self._file, self._describe = upload, file, describe

    def write(self, data: bytes) -> None:
        """Append bytes. Raises ApiError `file_too_large` for data beyond the declared length, none of which
        is kept; OutputError."""
        if self.offset + len(data) > self.length:
            text = f"the body goes beyond the {self.length} bytes declared"
            raise ApiError("file_too_large", text)
        rest = memoryview(data)
        with disk_errors():
            while rest:
                count = os.pwrite(self._file.fileno(), rest, self.offset)
                rest, self.offset = rest[count:], self.offset + count
        if self.offset - self._upload.synced >= SYNC_BYTES:
            self.sync()

    def sync(self) -> None:
        """Make durable what was written, and record it. Raises OutputError."""
        if self.offset != self._upload.synced:
            with disk_errors():
                os.fsync(self._file.fileno())
                self._upload = replace(self._upload, synced=self.offset)
                self._describe(self._upload)
