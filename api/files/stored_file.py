"""The record of a file, and its JSON as OpenAI's File object.

    StoredFile(id, owner, "batch", "calls.jsonl", size=2048, created_at=1790000000.0, expires_at=None).view()

Knows purposes and the form of ids; does not know rows or contents.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal
from uuid import uuid4

from pydantic import BaseModel

Purpose = Literal["batch", "user_data", "batch_output"]
UploadPurpose = Literal["batch", "user_data"]
"""What clients may upload: the requests of a batch, and audio. `batch_output` is written by the server."""

ID = re.compile(r"file-[0-9a-f]{32}")


class FileObject(BaseModel):
    """OpenAI's File object. `status` is deprecated there, and SDKs still require it."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Purpose
    status: Literal["processed"] = "processed"


class DeletedFile(BaseModel):
    """The answer to a deletion."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


@dataclass(frozen=True)
class StoredFile:
    """A file's row; its content is a blob. Times are Unix seconds."""

    id: str
    owner: str  # name of the API key
    purpose: Purpose
    filename: str  # the client's name for it: a label, never a path
    size: int  # bytes
    created_at: float
    expires_at: float | None

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    def view(self) -> FileObject:
        """The file's JSON for clients."""
        return FileObject(
            id=self.id,
            bytes=self.size,
            created_at=int(self.created_at),
            expires_at=None if self.expires_at is None else int(self.expires_at),
            filename=self.filename,
            purpose=self.purpose,
        )


def new_id() -> str:
    return f"file-{uuid4().hex}"


def derived_id(*parts: str) -> str:
    """The id of a file that the server writes: always the same for the same parts, so that a step which is
    repeated after a crash writes no second file."""
    return f"file-{sha256(':'.join(parts).encode()).hexdigest()[:32]}"
