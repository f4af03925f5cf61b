"""Resumable uploads: a file that comes in pieces, over connections that break and servers that die.

    upload = uploads.create("team", length=1 << 30, label="meeting.flac")
    with uploads.appending(upload.id, "team", offset=0) as part:      # one at a time
        part.write(b"...")
    with uploads.whole(upload.id, "team") as file: ...

The offset *is* the size of the part file; nobody keeps it beside it. What a failing disk or power could
have lost is cut off at the next start: the length known to be on disk is recorded as it grows.
Knows nothing of HTTP, so another protocol may stand in front of it.
"""

from __future__ import annotations

import fcntl
import hashlib
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

from ..errors import ApiError
from ..jobs.blobs import storing

ID = re.compile(r"up_[0-9a-f]{32}")

PIECE = 1 << 20
SYNC_BYTES = 16 << 20
"""At most so much is lost with the power."""


@dataclass(frozen=True)
class Upload:
    """An upload as far as it has come."""

    id: str
    tenant: str
    length: int
    label: str | None
    offset: int

    @property
    def complete(self) -> bool:
        return self.offset == self.length


class Uploads:
    """The uploads in a folder: `<id>.part` holds the bytes, `<id>.json` what was said of them,
    `<id>.synced` how many are on disk for sure."""

    def __init__(
        self, folder: Path, max_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        self.folder, self.max_bytes, self.clock = folder, max_bytes, clock

    def create(self, tenant: str, length: int, label: str | None = None) -> Upload:
        """Raises ApiError `file_too_large`, OutputError."""
        if length > self.max_bytes:
            raise ApiError("file_too_large", f"the upload is larger than {self.max_bytes} bytes")
        made = Upload(f"up_{secrets.token_hex(16)}", tenant, length, label, 0)
        told = {name: value for name, value in asdict(made).items() if name not in ("id", "offset")}
        with storing():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._part(made.id).touch(0o600)
            path = self._about(made.id)
            path.with_suffix(".new").write_text(json.dumps(told))
            os.replace(path.with_suffix(".new"), path)  # from here on it is there
        return made

    def get(self, id: str, tenant: str) -> Upload:
        """Raises ApiError `not_found`, also for somebody else's."""
        if ID.fullmatch(id):
            with suppress(FileNotFoundError):
                told = json.loads(self._about(id).read_text())
                if told["tenant"] == tenant:
                    return Upload(id=id, offset=self._part(id).stat().st_size, **told)
        raise ApiError("not_found", "there is no such upload")

    @contextmanager
    def appending(self, id: str, tenant: str, offset: int) -> Iterator[Part]:
        """The upload, to be gone on with at its offset; all that was written is on disk at the end,
        also if the block is left by an error.

        Raises ApiError: `not_found`, `locked` where somebody else is at it, `conflict` where the offset
        is another.
        """
        self.get(id, tenant)
        with self._locked(id) as file:
            upload = self.get(id, tenant)
            if offset != upload.offset:
                raise ApiError("conflict", f"the upload is at {upload.offset}, not at {offset}")
            part = Part(file, upload, self._synced(id))
            try:
                yield part
            finally:
                part.sync()

    @contextmanager
    def whole(self, id: str, tenant: str) -> Iterator[BinaryIO]:
        """The file of a complete upload, while nobody else is at it. Raises ApiError: `not_found`,
        `locked`, `conflict` where some of it is still to come."""
        self.get(id, tenant)
        with self._locked(id) as file:
            upload = self.get(id, tenant)
            if not upload.complete:
                text = f"the upload has {upload.offset} of {upload.length} bytes"
                raise ApiError("conflict", text)
            yield file

    def digest(self, id: str, tenant: str) -> bytes:
        """SHA-256 of a complete upload. Raises as `whole` does."""
        with self.whole(id, tenant) as file:
            file.seek(0)
            made = hashlib.sha256()
            while piece := file.read(PIECE):
                made.update(piece)
            return made.digest()

    def delete(self, id: str, tenant: str) -> None:
        """Raises ApiError: `not_found`, `locked`."""
        self.get(id, tenant)
        with self._locked(id):
            self._remove(id)

    def recover(self) -> None:
        """At a start: nothing counts that might not be on disk."""
        for path in self._all():
            part, synced = self._part(path.stem), self._synced(path.stem)
            length = int(synced.read_text()) if synced.is_file() else 0
            with suppress(FileNotFoundError):
                if part.stat().st_size > length:
                    os.truncate(part, length)

    def expire(self, older_s: float) -> None:
        """Removes uploads that nobody has written to for so long."""
        oldest = self.clock() - older_s
        for path in self._all():
            with suppress(FileNotFoundError, ApiError):
                if max(path.stat().st_mtime, self._part(path.stem).stat().st_mtime) < oldest:
                    with self._locked(path.stem):
                        self._remove(path.stem)

    def _all(self) -> list[Path]:
        return [path for path in self.folder.glob("up_*.json") if ID.fullmatch(path.stem)]

    def _remove(self, id: str) -> None:
        for path in (self._about(id), self._synced(id), self._part(id)):
            path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self, id: str) -> Iterator[BinaryIO]:
        try:
            file = self._part(id).open("r+b")
        except FileNotFoundError as error:
            raise ApiError("not_found", "there is no such upload") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ApiError("locked", "somebody else is writing to this upload") from error
            yield file

    def _part(self, id: str) -> Path:
        return self.folder / f"{id}.part"

    def _about(self, id: str) -> Path:
        return self.folder / f"{id}.json"

    def _synced(self, id: str) -> Path:
        return self.folder / f"{id}.synced"


class Part:
    """An upload while it grows."""

    def __init__(self, file: BinaryIO, upload: Upload, synced: Path) -> None:
        self.offset, self.length = upload.offset, upload.length
        self._file, self._synced, self._sure = file, synced, upload.offset

    def write(self, data: bytes) -> None:
        """Raises ApiError `file_too_large` for what is beyond the length that was declared; nothing of
        such data is kept. Raises OutputError."""
        if self.offset + len(data) > self.length:
            text = f"the body goes beyond the {self.length} bytes declared"
            raise ApiError("file_too_large", text)
        rest, at = memoryview(data), self.offset
        with storing():
            while rest:
                count = os.pwrite(self._file.fileno(), rest, at)
                rest, at = rest[count:], at + count
        self.offset = at
        if self.offset - self._sure >= SYNC_BYTES:
            self.sync()

    def sync(self) -> None:
        """All of it is on disk, and known to be. Raises OutputError."""
        if self.offset == self._sure and self._synced.is_file():
            return
        with storing():
            os.fsync(self._file.fileno())
            new = self._synced.with_suffix(".sync")
            new.write_text(str(self.offset))
            os.replace(new, self._synced)
        self._sure = self.offset
