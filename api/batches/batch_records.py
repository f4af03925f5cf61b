"""The records of batches and their lines, and OpenAI's Batch object.

Times are Unix seconds. A line's text and its parameters are in the input file's blob, not here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal
from uuid import uuid4

from pydantic import BaseModel

BatchState = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
LineState = Literal["pending", "submitted", "succeeded", "failed", "cancelled", "expired"]
"""`submitted`: the line's job exists. The last four are final."""

UNFINISHED: tuple[BatchState, ...] = ("validating", "in_progress", "finalizing", "cancelling")
OPEN_LINES: tuple[LineState, ...] = ("pending", "submitted")

Endpoint = Literal["/v1/audio/transcriptions", "/v1/audio/translations"]
WINDOW = "24h"
WINDOW_S = 24 * 3600.0

TIMES = (
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)
"""When a batch entered each state: `<state>_at`."""

ID = re.compile(r"batch_[0-9a-f]{32}")


class BatchError(BaseModel):
    """Why a file of requests cannot be used; `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchErrors(BaseModel):
    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(BaseModel):
    total: int
    completed: int
    failed: int


class CachedTokens(BaseModel):
    cached_tokens: int = 0


class ReasoningTokens(BaseModel):
    reasoning_tokens: int = 0


class BatchUsage(BaseModel):
    """Positions of the encoder as input tokens (50 per second of audio), and tokens of the texts."""

    input_tokens: int
    input_tokens_details: CachedTokens = CachedTokens()
    output_tokens: int
    output_tokens_details: ReasoningTokens = ReasoningTokens()
    total_tokens: int


class BatchObject(BaseModel):
    """OpenAI's Batch object."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: Endpoint
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["24h"] = "24h"
    status: BatchState
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage | None
    metadata: dict[str, str] | None


@dataclass(frozen=True)
class Batch:
    """A batch's row."""

    id: str
    owner: str  # name of the API key
    endpoint: Endpoint
    input_file: str
    state: BatchState
    created_at: float
    expires_at: float
    model: str
    times: Mapping[str, float | None] = field(default_factory=dict)  # of TIMES
    metadata: Mapping[str, str] | None = None
    output_kept_s: float | None = None  # how long its output is kept; None: as other files
    output_file: str | None = None
    error_file: str | None = None
    errors: tuple[BatchError, ...] = ()
    usage: tuple[int, int] | None = None  # input and output tokens
    executor: str | None = None  # the process that works on it

    @property
    def ended(self) -> bool:
        return self.state not in UNFINISHED

    def view(self, counts: Mapping[LineState, int]) -> BatchObject:
        """The batch's JSON for clients; `counts` is the number of its lines in each state."""
        times: dict[str, Any] = {
            name: None if (t := self.times.get(name)) is None else int(t) for name in TIMES
        }
        usage = None
        if self.usage is not None:
            read, written = self.usage
            usage = BatchUsage(
                input_tokens=read, output_tokens=written, total_tokens=read + written
            )
        return BatchObject(
            id=self.id,
            endpoint=self.endpoint,
            model=self.model,
            errors=BatchErrors(data=list(self.errors)) if self.errors else None,
            input_file_id=self.input_file,
            status=self.state,
            output_file_id=self.output_file,
            error_file_id=self.error_file,
            created_at=int(self.created_at),
            expires_at=int(self.expires_at),
            **times,
            request_counts=RequestCounts(
                total=sum(counts.values()),
                completed=counts.get("succeeded", 0),
                failed=sum(counts.get(s, 0) for s in ("failed", "cancelled", "expired")),
            ),
            usage=usage,
            metadata=None if self.metadata is None else dict(self.metadata),
        )


@dataclass(frozen=True)
class LineError:
    """Why a line failed, as its route would have said."""

    code: str
    message: str
    param: str | None = None


@dataclass(frozen=True)
class LineRow:
    """A line's row: number `k`, counted from 0 without blank lines, and its place in the input file."""

    batch: str
    k: int
    at: int  # bytes before it
    length: int  # bytes
    state: LineState = "pending"
    error: LineError | None = None

    @property
    def job(self) -> str:
        """The id of its job: always the same, so that a line which is submitted again after a crash is
        recognised."""
        return f"job_{_hash(self.batch, self.k, 'job')}"

    @property
    def request(self) -> str:
        """The id of its answer in the output."""
        return f"batch_req_{_hash(self.batch, self.k, 'request')}"


def new_id() -> str:
    return f"batch_{uuid4().hex}"


def _hash(*parts: Any) -> str:
    return sha256(":".join(map(str, parts)).encode()).hexdigest()[:32]
