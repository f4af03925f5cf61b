"""Limits of resumable uploads: of one, and of all that a client has open.

    limits = UploadLimits.of(settings)
    limits.check_length(length)
    limits.check_open(OpenUploads(count=3, bytes=5 << 30), length)

An upload is open from its creation until it becomes a job, is deleted or expires: so long it holds a file or
a row, and its client may fill it to its length. Does not know where uploads are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ApiError
from ..settings import Settings

RETRY_S = 60
"""When a client with too many uploads had better try again: others of its uploads may be jobs by then."""


@dataclass(frozen=True)
class OpenUploads:
    """The open uploads of one client; `bytes` as declared at their creation."""

    count: int
    bytes: int


@dataclass(frozen=True)
class UploadLimits:
    """`max_bytes` of one upload; `max_open` and `max_open_bytes` of all open uploads of one client."""

    max_bytes: int
    max_open: int
    max_open_bytes: int

    @classmethod
    def of(cls, settings: Settings) -> UploadLimits:
        return cls(
            settings.max_upload_bytes,
            settings.max_open_uploads_per_key,
            settings.max_open_bytes_per_key,
        )

    @property
    def longest(self) -> int:
        """Bytes of the longest upload that can be created."""
        return min(self.max_bytes, self.max_open_bytes)

    def check_length(self, length: int) -> None:
        """Raises ApiError `empty_file`, `file_too_large`."""
        if not length:
            raise ApiError("empty_file", "Upload-Length: the file is empty", param="Upload-Length")
        if length > self.longest:
            raise ApiError("file_too_large", f"the upload is larger than {self.longest} bytes")

    def check_open(self, before: OpenUploads, length: int) -> None:
        """Raises ApiError `rate_limited` if a client with these uploads may not open another."""
        if before.count >= self.max_open:
            text = f"there are {before.count} unfinished uploads already, the maximum"
        elif before.bytes + length > self.max_open_bytes:
            text = (
                f"unfinished uploads reserve {before.bytes} bytes already, and {self.max_open_bytes} "
                "is the maximum"
            )
        else:
            return
        advice = "finish some and make them jobs, or delete them"
        raise ApiError("rate_limited", f"{text}: {advice}", retry_after=RETRY_S)
