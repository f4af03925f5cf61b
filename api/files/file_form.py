"""The form of `POST /v1/files`, without the file.

Knows fields and their bounds; does not know HTTP or rows.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from .file_store import MAX_EXPIRY_S, MIN_EXPIRY_S
from .stored_file import UploadPurpose


class ExpiresAfter(BaseModel):
    """When the file is deleted, counted from its creation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_EXPIRY_S, le=MAX_EXPIRY_S)


class FileForm(BaseModel):
    """OpenAI's request for a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    purpose: UploadPurpose
    expires_after: ExpiresAfter | None = None
