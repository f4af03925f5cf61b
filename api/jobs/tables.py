"""The tables of the job database, and the JSON view of a job for clients.

Times are Unix seconds, lengths are seconds of audio. Holds no transcript text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
Kind = Literal["transcribe", "diarize"]
"""What a run of a job does: everything, or only the speakers."""

ENDED: frozenset[State] = frozenset({"succeeded", "failed", "cancelled"})
UNFINISHED: frozenset[State] = frozenset({"queued", "running"})

Risk = Literal["beside", "alone"]
"""A job's work at present can kill its process, which has other work too, or none."""

CallbackState = Literal["pending", "delivered", "failed", "gone"]
EntryKind = Literal["state", "progress", "segment"]

MAX_TEXT = 1000
"""Characters of a text in a row: the message of an error, a prompt."""


class Row(MappedAsDataclass, DeclarativeBase, kw_only=True):
    """A row of a table."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {
        dict[str, Any]: sa.JSON,
        dict[str, str]: sa.JSON,
        list[dict[str, Any]]: sa.JSON,
        **dict.fromkeys((State, Kind, Risk, CallbackState, EntryKind), sa.String),
    }


class Job(Row):
    """A job. `run` counts submissions and retries: writes of an earlier run are refused."""

    __tablename__ = "forescribe_jobs"
    __table_args__ = (
        sa.Index("forescribe_jobs_of", "owner", "created_at", "id"),
        sa.Index("forescribe_jobs_state", "state"),
        sa.Index("forescribe_jobs_hook", "hook_state"),
        sa.Index("forescribe_jobs_key", "owner", "key", unique=True),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]  # name of the API key
    total_s: Mapped[float]
    label: Mapped[str | None] = mapped_column(default=None)
    done_s: Mapped[float] = mapped_column(default=0.0)
    options: Mapped[dict[str, Any]] = mapped_column(default_factory=dict)
    """The part of the request that clients see; all of it is the file `form`."""
    files: Mapped[dict[str, str]] = mapped_column(default_factory=dict)
    """Names by role: audio, form, plan, group-0, group-1, ..., spoken, result, corrections-1, ..."""
    state: Mapped[State] = mapped_column(default="queued")
    run: Mapped[int] = mapped_column(default=1)
    kind: Mapped[Kind] = mapped_column(default="transcribe")
    created_at: Mapped[float] = mapped_column(default=0.0)
    started_at: Mapped[float | None] = mapped_column(default=None)
    finished_at: Mapped[float | None] = mapped_column(default=None)
    error_code: Mapped[str | None] = mapped_column(default=None)
    error_message: Mapped[str | None] = mapped_column(default=None)
    warnings: Mapped[list[dict[str, Any]]] = mapped_column(default_factory=list)
    """Code and message, of its transcript."""
    key: Mapped[str | None] = mapped_column(default=None)  # the Idempotency-Key
    fingerprint: Mapped[str | None] = mapped_column(default=None)  # of the request with that key
    hook_url: Mapped[str | None] = mapped_column(default=None)
    hook_secret: Mapped[str | None] = mapped_column(default=None)
    hook_state: Mapped[CallbackState | None] = mapped_column(default=None)
    hook_tries: Mapped[int] = mapped_column(default=0)
    hook_at: Mapped[float | None] = mapped_column(default=None)
    """When the callback is due, by the database's clock; None: at once."""
    claimed_by: Mapped[str | None] = mapped_column(default=None)  # the process that works on it
    claimed_until: Mapped[float | None] = mapped_column(default=None)
    """Likewise; None: nobody has it."""
    risk: Mapped[Risk | None] = mapped_column(default=None)
    deaths_beside: Mapped[int] = mapped_column(default=0)
    """Of processes that had other work too, since it last progressed."""
    deaths_alone: Mapped[int] = mapped_column(default=0)  # of those that had nothing else in hand
    trace: Mapped[str | None] = mapped_column(default=None)
    """W3C's traceparent, at which its trace goes on."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def stage(self) -> str | None:
        """What is done while it runs, as its files tell."""
        if self.state != "running":
            return None
        if self.kind == "transcribe" and "spoken" not in self.files:
            return "transcribing" if "plan" in self.files else "reading"
        return "diarizing" if self.options.get("diarize") else "finishing"

    @property
    def speed(self) -> float | None:
        """Seconds of audio per second of wall time from start to end, downtime included."""
        if self.state != "succeeded" or self.started_at is None or self.finished_at is None:
            return None
        wall_s = self.finished_at - self.started_at
        return round(self.total_s / wall_s, 2) if wall_s > 0 else None

    def view(self) -> dict[str, Any]:
        """The job's JSON for clients."""
        started_at, finished_at = self.started_at, self.finished_at
        body: dict[str, Any] = {
            "id": self.id,
            "object": "job",
            "state": self.state,
            "stage": self.stage,
            "label": self.label,
            "created_at": int(self.created_at),
            "started_at": started_at and int(started_at),
            "finished_at": finished_at and int(finished_at),
            "progress": {"done_s": round(self.done_s, 3), "total_s": round(self.total_s, 3)},
            "options": self.options,
            "error": None,
            "warnings": self.warnings,
            "speed": self.speed,
        }
        if self.error_code is not None:
            body["error"] = {"code": self.error_code, "message": self.error_message}
        if self.hook_url is not None:
            body["webhook"] = {"state": self.hook_state, "tries": self.hook_tries}
        return body


class LogEntry(Row):
    """Entry number `n` of a job's log."""

    __tablename__ = "forescribe_entries"

    job: Mapped[str] = mapped_column(primary_key=True)
    n: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[EntryKind]
    data: Mapped[dict[str, Any]]


META = Row.metadata
JOBS, ENTRIES = cast(sa.Table, Job.__table__), cast(sa.Table, LogEntry.__table__)

FOLDERS = sa.Table(
    "forescribe_folders",
    META,
    sa.Column("job", sa.String, primary_key=True),
    sa.Column("at", sa.Float, index=True),
)
"""The folders with files of jobs (`Store.reserve`). `at` is NULL while there is the job, its time before the
job is accepted, and 0 once the folder is to be deleted."""

PLACES = sa.Table(
    "forescribe_places",
    META,
    sa.Column("what", sa.String, primary_key=True),
    sa.Column("place", sa.String, nullable=False),
)
"""Where the files of this database's jobs are."""


@dataclass(frozen=True)
class Claim:
    """A process's right to work on a run of a job. Writes without it are refused."""

    job: str
    run: int
    worker: str


def bounded(text: str) -> str:
    """The text, cut off where it is too long for a row: lists of jobs repeat it at each poll."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."
