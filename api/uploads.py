"""Resumable uploads: files that arrive in pieces, over connections that break and servers that restart.

    upload = uploads.create("team", length=1 << 30, label="meeting.flac")
    with uploads.appending(upload.id, "team", offset=0) as part:      # one writer at a time
        part.write(b"...")
    with uploads.whole(upload.id, "team") as file: ...

In the folder, `<id>.part` holds the bytes, `<id>.json` their description, `<id>.synced` the number of bytes
that are known to be on disk. The offset is the size of the part file and is not stored elsewhere; bytes
beyond the known ones are cut off at the next start, because a failing disk or power loss may have lost them.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from .errors import ApiError, disk_errors
from .settings import Settings

ID = re.compile(r"up_[0-9a-f]{32}")

SYNC_BYTES = 16 << 20
"""At most so many bytes are lost in a power failure."""

RETRY_S = 60
"""When a client with too many uploads had better try again: others of its uploads may be jobs by then."""


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
            raise ApiError("empty_file", "Upload-Length: the file is empty", param="Upload-Length")
        if length > self.settings.max_upload_bytes:
            text = f"the upload is larger than {self.settings.max_upload_bytes} bytes"
            raise ApiError("file_too_large", text)
        client = "" if client == owner else client
        upload = Upload(f"up_{secrets.token_hex(16)}", owner, length, label, 0, client)
        record = {k: v for k, v in asdict(upload).items() if k not in ("id", "offset")}
        with disk_errors(), self._creating():
            self._check_open(client or owner)
            self._part(upload.id).touch(0o600)
            path = self._description(upload.id)
            path.with_suffix(".new").write_text(json.dumps(record))
            os.replace(path.with_suffix(".new"), path)  # from here on it exists
        return upload

    def get(self, id: str, owner: str) -> Upload:
        if ID.fullmatch(id):
            with suppress(FileNotFoundError):
                record = json.loads(self._description(id).read_text())
                if record["tenant"] == owner:
                    return Upload(id=id, offset=self._part(id).stat().st_size, **record)
        raise ApiError("not_found", "there is no such upload")

    @contextmanager
    def appending(self, id: str, owner: str, offset: int) -> Iterator[UploadPart]:
        """Continue an upload at its offset. Everything written is kept at the end of the block, also if it
        raises. Raises OutputError."""
        with self._locked(id, owner) as file:
            upload = self.get(id, owner)
            if offset != upload.offset:
                raise ApiError("conflict", f"the upload is at {upload.offset}, not at {offset}")
            part = UploadPart(upload, file, self._synced(id))
            try:
                yield part
            finally:
                part.sync()

    @contextmanager
    def whole(self, id: str, owner: str) -> Iterator[BinaryIO]:
        """The bytes of a complete upload, locked."""
        with self._locked(id, owner) as file:
            upload = self.get(id, owner)
            if not upload.complete:
                text = f"the upload has {upload.offset} of {upload.length} bytes"
                raise ApiError("conflict", text)
            yield file

    def delete(self, id: str, owner: str) -> None:
        with self._locked(id, owner):
            self._remove(id)

    def recover(self) -> None:
        """Cut off bytes that may not be on disk. Call it once at the start."""
        for path in self._all():
            part, synced = self._part(path.stem), self._synced(path.stem)
            length = int(synced.read_text()) if synced.is_file() else 0
            with suppress(FileNotFoundError):
                if part.stat().st_size > length:
                    os.truncate(part, length)

    def expire(self, older_s: float) -> None:
        """Remove uploads that were not written to for `older_s` seconds."""
        oldest = self.clock() - older_s
        for path in self._all():
            with suppress(FileNotFoundError, ApiError):
                if max(path.stat().st_mtime, self._part(path.stem).stat().st_mtime) < oldest:
                    with self._lock(path.stem):
                        self._remove(path.stem)
        for part in self.folder.glob("up_*.part"):  # a process was killed between its two files
            with suppress(FileNotFoundError):
                orphan = not self._description(part.stem).exists()
                if orphan and part.stat().st_mtime < oldest:
                    part.unlink()

    @contextmanager
    def _creating(self) -> Iterator[None]:
        """One creation at a time, in all processes: each counts the uploads of those before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _check_open(self, client: str) -> None:
        """Read from the files: a counter in memory would differ between processes. 20 us for each."""
        count = 0
        for path in self._all():
            with suppress(FileNotFoundError):  # removed in between
                record = json.loads(path.read_text())
                count += (record.get("client") or record["tenant"]) == client
        if count >= self.settings.max_open_uploads_per_key:
            text = (
                f"there are {count} unfinished uploads already, the maximum: finish some and make them "
                "jobs, or delete them"
            )
            raise ApiError("rate_limited", text, retry_after=RETRY_S)

    def _all(self) -> list[Path]:
        return [path for path in self.folder.glob("up_*.json") if ID.fullmatch(path.stem)]

    def _remove(self, id: str) -> None:
        for path in (self._description(id), self._synced(id), self._part(id)):
            path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self, id: str, owner: str) -> Iterator[BinaryIO]:
        self.get(id, owner)
        with self._lock(id) as file:
            yield file

    @contextmanager
    def _lock(self, id: str) -> Iterator[BinaryIO]:
        try:
            file = self._part(id).open("r+b")
        except FileNotFoundError as error:
            raise ApiError("not_found", "there is no such upload") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ApiError("locked", "another request is writing to this upload") from error
            yield file

    def _part(self, id: str) -> Path:
        return self.folder / f"{id}.part"

    def _description(self, id: str) -> Path:
        return self.folder / f"{id}.json"

    def _synced(self, id: str) -> Path:
        return self.folder / f"{id}.synced"


class UploadPart:
    """An upload while it is written; `length` is that of the whole upload."""

    def __init__(self, upload: Upload, file: BinaryIO, synced: Path) -> None:
        self.offset, self.length = upload.offset, upload.length
        self._file, self._synced, self._durable = file, synced, upload.offset

    def write(self, data: bytes) -> None:
        """Append bytes. Raises ApiError `file_too_large` for data beyond the declared length, none of which
        is kept; OutputError."""
        if self.offset + len(data) > self.length:
            text = f"the body goes beyond the {self.length} bytes declared"
            raise ApiError("file_too_large", text)
        at, rest = self.offset, memoryview(data)
        with disk_errors():
            while rest:
                count = os.pwrite(self._file.fileno(), rest, at)
                rest, at = rest[count:], at + count
        self.offset = at
        if self.offset - self._durable >= SYNC_BYTES:
            self.sync()

    def sync(self) -> None:
        """Make durable what was written, and record it. Raises OutputError."""
        if self.offset == self._durable and self._synced.is_file():
            return
        with disk_errors():
            os.fsync(self._file.fileno())
            new = self._synced.with_suffix(".sync")
            new.write_text(str(self.offset))
            os.replace(new, self._synced)
        self._durable = self.offset


@dataclass(frozen=True)
class Upload:
    """An upload and its current offset."""

    id: str
    tenant: str  # the owner: the name of the API key; a key of the JSON file
    length: int
    label: str | None
    offset: int
    client: str = ""  # for whom it counts; empty: the owner

    @property
    def complete(self) -> bool:
        return self.offset == self.length
