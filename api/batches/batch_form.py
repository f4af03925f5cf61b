"""The body of `POST /v1/batches`, as a checked record.

    {"input_file_id": "file-...", "endpoint": "/v1/audio/transcriptions", "completion_window": "24h"}

An unknown field is an error: no option is accepted and then ignored. Does not know HTTP or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import ApiError
from ..files.file_form import ExpiresAfter
from .batch_records import Endpoint

Key = Annotated[str, Field(min_length=1, max_length=64)]
Value = Annotated[str, Field(max_length=512)]


class BatchForm(BaseModel):
    """OpenAI's request for a batch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_file_id: str
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Annotated[dict[Key, Value], Field(max_length=16)] | None = None
    output_expires_after: ExpiresAfter | None = None


def parse(body: Mapping[str, Any]) -> BatchForm:
    """Check the fields. Raises ApiError `invalid_value` with the name of the field."""
    try:
        return BatchForm.model_validate({k: v for k, v in body.items() if v is not None})
    except ValidationError as error:
        first = error.errors()[0]
        param = str(first["loc"][0])[:100]
        reasons = {
            "missing": "is missing",
            "extra_forbidden": f"unknown field; known: {', '.join(BatchForm.model_fields)}",
        }
        message = (
            reasons.get(first["type"], first["msg"]) if len(first["loc"]) == 1 else first["msg"]
        )
        raise ApiError("invalid_value", f"{param}: {message}", param=param) from error
