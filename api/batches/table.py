"""The rows of batches and of their lines with the transitions between states, and OpenAI's Batch object.

Every transition names the states that it may leave, so of two processes that do the same only one
succeeds. Times are Unix seconds. A line's text and its parameters are in the input file's blob, not here.
Does not know files, jobs' contents or HTTP.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal
from uuid import uuid4

import sqlalchemy as sa
from pydantic import BaseModel

from ..jobs.database import Database, Place, Tx, not_before, one_page
from ..jobs.tables import JOBS, META, WORKERS, bounded, record_of, row_of

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
"""`submitted`: the line's job exists, or its text is being written. The last four are final."""

UNFINISHED: tuple[BatchState, ...] = ("validating", "in_progress", "finalizing", "cancelling")
OPEN_LINES: tuple[LineState, ...] = ("pending", "submitted")

Endpoint = Literal[
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/chat/completions",
    "/v1/completions",
]

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

ROWS_PER_STATEMENT = 500

ID = re.compile(r"batch_[0-9a-f]{32}")

BATCHES = sa.Table(
    "forescribe_batches",
    META,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("tenant", sa.String, nullable=False),  # the owner: the name of the API key
    sa.Column("endpoint", sa.String, nullable=False),
    sa.Column("input_file", sa.String, nullable=False),
    sa.Column("state", sa.String, nullable=False, index=True),
    sa.Column("model", sa.String, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float, nullable=False),
    *(sa.Column(name, sa.Float) for name in TIMES),
    sa.Column("metadata", sa.Text),
    sa.Column("output_kept_s", sa.Float),
    sa.Column("output_file", sa.String),
    sa.Column("error_file", sa.String),
    sa.Column("errors", sa.Text),
    sa.Column("usage", sa.Text),
    sa.Column("executor", sa.String),  # the process that works on it
    sa.Index("forescribe_batches_of", "tenant", "created_at", "id"),
)

LINES = sa.Table(
    "forescribe_batch_lines",
    META,
    sa.Column("batch", sa.String, primary_key=True),
    sa.Column("k", sa.Integer, primary_key=True),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("length", sa.Integer, nullable=False),
    sa.Column("job", sa.String, nullable=False),
    sa.Column("state", sa.String, nullable=False),
    sa.Column("error_code", sa.String),
    sa.Column("error_message", sa.String),
    sa.Column("error_param", sa.String),
    sa.Index("forescribe_batch_lines_state", "batch", "state"),
)


class BatchTable:
    """The batches of one database; `now` gives the time in Unix seconds."""

    def __init__(self, database: Database, now: Callable[[], float]) -> None:
        self._database, self._now = database, now

    # -- batches ----------------------------------------------------------------------------------

    def insert(self, tx: Tx, batch: Batch) -> None:
        """Raises IntegrityError if there is a batch with this id."""
        names = "id owner endpoint input_file state model created_at expires_at output_kept_s"
        row = row_of(batch, *names.split())
        row["metadata"] = None if batch.metadata is None else json.dumps(dict(batch.metadata))
        tx.execute(sa.insert(BATCHES).values(**row))

    def get(self, id: str, owner: str | None = None) -> Batch | None:
        """The batch; None if it does not exist or belongs to another owner."""
        query = sa.select(BATCHES).where(BATCHES.c.id == id)
        if owner is not None:
            query = query.where(BATCHES.c.tenant == owner)
        with self._database.engine.connect() as tx:
            row = tx.execute(query).one_or_none()
        return None if row is None else _batch(row)

    def page(self, owner: str, limit: int, after: Place | None) -> tuple[list[Batch], bool]:
        """Up to `limit` batches, the latest first, behind a place; and whether there are more."""
        query = sa.select(BATCHES).where(BATCHES.c.tenant == owner)
        with self._database.engine.connect() as tx:
            batches = [_batch(row) for row in tx.execute(one_page(query, BATCHES, after, limit))]
        return batches[:limit], len(batches) > limit

    def unfinished(self) -> list[Batch]:
        """Batches that have not ended, the oldest first."""
        query = sa.select(BATCHES).where(BATCHES.c.state.in_(UNFINISHED))
        with self._database.engine.connect() as tx:
            return [_batch(row) for row in tx.execute(query.order_by(BATCHES.c.created_at))]

    def count_unfinished(self, owner: str | None = None) -> int:
        query = sa.select(sa.func.count()).where(BATCHES.c.state.in_(UNFINISHED))
        if owner is not None:
            query = query.where(BATCHES.c.tenant == owner)
        with self._database.engine.connect() as tx:
            return int(tx.execute(query).scalar_one())

    def ended_before(self, when: float) -> list[str]:
        ends = [BATCHES.c[f"{state}_at"] for state in ("completed", "failed", "expired")]
        ended_at = sa.func.coalesce(*ends, BATCHES.c.cancelled_at)
        with self._database.engine.connect() as tx:
            return list(tx.execute(sa.select(BATCHES.c.id).where(ended_at < when)).scalars())

    def claim(self, id: str, executor: str, *, exclusive: bool) -> bool:
        """Take a batch whose process has ended; False if another one works on it. With an `exclusive`
        database there is no other process."""
        free: sa.ColumnElement[bool] = sa.true()
        if not exclusive:
            dead = BATCHES.c.executor.not_in(sa.select(WORKERS.c.executor))
            free = BATCHES.c.executor.is_(None) | (BATCHES.c.executor == executor) | dead
        update = sa.update(BATCHES).where(BATCHES.c.id == id, free).values(executor=executor)
        with self._database.transaction() as tx:
            return bool(tx.execute(update).rowcount)

    def enter(
        self, tx: Tx, id: str, state: BatchState, leaving: Sequence[BatchState], **values: Any
    ) -> bool:
        """Enter a state from one of those in `leaving`; False if the batch is in none of them."""
        earlier = (BATCHES.c.created_at, *(BATCHES.c[name] for name in TIMES))
        values |= {"state": state, f"{state}_at": not_before(tx, self._now(), *earlier)}
        update = sa.update(BATCHES).where(BATCHES.c.id == id, BATCHES.c.state.in_(leaving))
        return bool(tx.execute(update.values(**values)).rowcount)

    def fail(self, tx: Tx, id: str, errors: Iterable[BatchError]) -> bool:
        """The input file cannot be used."""
        text = json.dumps([error.model_dump() for error in errors])
        return self.enter(tx, id, "failed", ("validating",), errors=text)

    def deletions(self, id: str) -> tuple[sa.Delete, sa.Delete]:
        """The statements that delete a batch and its lines."""
        lines = sa.delete(LINES).where(LINES.c.batch == id)
        return lines, sa.delete(BATCHES).where(BATCHES.c.id == id)

    # -- lines ------------------------------------------------------------------------------------

    def insert_lines(self, tx: Tx, lines: Sequence[LineRow]) -> None:
        names = ("batch", "k", "at", "length", "job", "state")
        for at in range(0, len(lines), ROWS_PER_STATEMENT):
            rows = [row_of(line, *names) for line in lines[at : at + ROWS_PER_STATEMENT]]
            tx.execute(sa.insert(LINES), rows)

    def counts(self, ids: Sequence[str]) -> dict[str, dict[LineState, int]]:
        """The number of lines in each state, for each of the batches."""
        columns = (LINES.c.batch, LINES.c.state)
        query = (
            sa.select(*columns, sa.func.count()).where(LINES.c.batch.in_(ids)).group_by(*columns)
        )
        counts: dict[str, dict[LineState, int]] = {id: {} for id in ids}
        with self._database.engine.connect() as tx:
            for batch, state, count in tx.execute(query):
                counts[batch][state] = count
        return counts

    def lines(
        self, batch: str, state: LineState | None = None, limit: int | None = None, after: int = -1
    ) -> list[LineRow]:
        """Lines in order, those behind line `after`."""
        query = sa.select(LINES).where(LINES.c.batch == batch, LINES.c.k > after)
        if state is not None:
            query = query.where(LINES.c.state == state)
        with self._database.engine.connect() as tx:
            rows = tx.execute(query.order_by(LINES.c.k).limit(limit))
            return [_line(row) for row in rows]

    def ended_jobs(self, batch: str) -> list[tuple[LineRow, str | None, LineError | None]]:
        """The submitted lines whose jobs have ended, with the job's state and error; the state is None if
        the job has been deleted."""
        query = (
            sa.select(LINES, JOBS.c.state.label("ended"), JOBS.c.error_code.label("code"))
            .add_columns(JOBS.c.error_message.label("message"))
            .outerjoin(JOBS, JOBS.c.id == LINES.c.job)
            .where(LINES.c.batch == batch, LINES.c.state == "submitted")
            .where(JOBS.c.id.is_(None) | JOBS.c.state.not_in(("queued", "running")))
            .order_by(LINES.c.k)
        )
        with self._database.engine.connect() as tx:
            return [
                (_line(row), row.ended, LineError(row.code, row.message) if row.code else None)
                for row in tx.execute(query)
            ]

    def open_jobs(self, batch: str) -> list[str]:
        """The unfinished jobs of lines that have not ended; a pending line has one after a crash."""
        query = (
            sa.select(JOBS.c.id)
            .join(LINES, LINES.c.job == JOBS.c.id)
            .where(LINES.c.batch == batch, LINES.c.state.in_(OPEN_LINES))
            .where(JOBS.c.state.in_(("queued", "running")))
        )
        with self._database.engine.connect() as tx:
            return list(tx.execute(query).scalars())

    def set_line(
        self, tx: Tx, line: LineRow, state: LineState, error: LineError | None = None
    ) -> bool:
        """Enter a state, unless the line has ended; False if it has."""
        update = sa.update(LINES).where(
            LINES.c.batch == line.batch, LINES.c.k == line.k, LINES.c.state.in_(OPEN_LINES)
        )
        return bool(tx.execute(update.values(state=state, **_error_values(error))).rowcount)

    def lose_line(self, line: LineRow, error: LineError) -> None:
        """The result of a line that has succeeded is gone."""
        which = (LINES.c.batch == line.batch) & (LINES.c.k == line.k)
        values = {"state": "failed", **_error_values(error)}
        with self._database.transaction() as tx:
            tx.execute(sa.update(LINES).where(which).values(**values))

    def end_lines(self, tx: Tx, batch: str, state: LineState) -> None:
        """End all lines that have not ended."""
        open_lines = (LINES.c.batch == batch) & LINES.c.state.in_(OPEN_LINES)
        tx.execute(sa.update(LINES).where(open_lines).values(state=state))


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


@dataclass(frozen=True)
class LineError:
    """Why a line failed, as its route would have said."""

    code: str
    message: str
    param: str | None = None


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
    """Tokens of prompts, or for audio positions of the encoder (50 per second); and tokens of the texts."""

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


def new_id() -> str:
    return f"batch_{uuid4().hex}"


def _hash(*parts: Any) -> str:
    return sha256(":".join(map(str, parts)).encode()).hexdigest()[:32]


def _batch(row: Any) -> Batch:
    values: Mapping[str, Any] = row._mapping  # `metadata` is also an attribute of the row
    return record_of(
        Batch,
        row,
        times={name: values[name] for name in TIMES},
        metadata=json.loads(values["metadata"]) if values["metadata"] else None,
        errors=tuple(BatchError(**error) for error in json.loads(row.errors or "[]")),
        usage=tuple(json.loads(row.usage)) if row.usage else None,
    )


def _error_values(error: LineError | None) -> dict[str, str | None]:
    if error is None:
        return {}
    return {
        "error_code": error.code,
        "error_message": bounded(error.message),
        "error_param": error.param and bounded(error.param),
    }


def _line(row: Any) -> LineRow:
    error = None
    if row.error_code:
        error = LineError(row.error_code, row.error_message, row.error_param)
    return record_of(LineRow, row, error=error)
