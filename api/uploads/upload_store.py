"""The interface of resumable uploads: `tus` keeps them in a folder, `shared_uploads` for all replicas."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

from .tus import Upload
from .upload_limits import UploadLimits


class UploadPart(Protocol):
    """An upload while it is written."""

    length: int
    """Bytes of the whole upload."""

    def write(self, data: bytes) -> None:
        """Append bytes. Raises ApiError `file_too_large` for data beyond the length."""

    def sync(self) -> None:
        """Make durable what was written."""


class UploadStore(Protocol):
    """Uploads by id and owner. The methods raise ApiError `not_found` for uploads of others too, `locked`
    while another request uses the upload, `conflict` for a wrong offset or an incomplete one."""

    limits: UploadLimits

    def create(
        self, owner: str, length: int, label: str | None = None, *, client: str = ""
    ) -> Upload:
        """Create an empty upload, which counts for the client, by default for the owner. Raises ApiError
        `empty_file`, `file_too_large`, `rate_limited` if the client has too many; OutputError."""

    def get(self, id: str, owner: str) -> Upload: ...

    def appending(self, id: str, owner: str, offset: int) -> AbstractContextManager[UploadPart]: ...

    def whole(self, id: str, owner: str) -> AbstractContextManager[BinaryIO]:
        """The bytes of a complete upload."""

    def digest(self, id: str, owner: str) -> bytes:
        """SHA-256 of a complete upload."""

    def delete(self, id: str, owner: str) -> None: ...

    def recover(self) -> None:
        """Make the uploads consistent at the start of a process."""

    def expire(self, older_s: float) -> None:
        """Remove uploads that were not written to for `older_s` seconds."""
