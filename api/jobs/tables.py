"""The tables of the job database, and the records of a job with its JSON view for clients.

Times are Unix seconds, lengths are seconds of audio. Holds no transcript text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import sqlalchemy as sa

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
Kind = Literal["transcribe", "diarize"]
"""What a run of a job does: everything, or only the speakers."""

ENDED: frozenset[State] = frozenset({"succeeded", "failed", "cancelled"})
UNFINISHED: frozenset[State] = frozenset({"queued", "running"})
CallbackState = Literal["pending", "delivered", "failed", "gone"]

EntryKind = Literal["state", "progress", "segment"]

Risk = Literal["beside", "alone"]
"""A job's work at present can kill its process, which has other work too, or none."""

MAX_TEXT = 1000
"""Characters of a text in a row: the message of an error, a prompt."""

MAX_ITEMS = 20
"""Elements of a list of a row's options."""

META = sa.MetaData()

JOBS = sa.Table(
    "forescribe_jobs",
    META,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("tenant", sa.String, nullable=False),  # the owner: the name of the API key
    sa.Column("state", sa.String, nullable=False),
    sa.Column("run", sa.Integer, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("label", sa.String),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("started_at", sa.Float),
    sa.Column("finished_at", sa.Float),
    sa.Column("total_s", sa.Float, nullable=False),
    sa.Column("done_s", sa.Float, nullable=False),
    sa.Column("options", sa.Text, nullable=False),
    sa.Column("files", sa.Text, nullable=False),  # by role
    sa.Column("key", sa.String),  # the Idempotency-Key
    sa.Column("fingerprint", sa.String),  # of the request with that key
    sa.Column("error_code", sa.String),
    sa.Column("error_message", sa.String),
    sa.Column("hook_url", sa.String),
    sa.Column("hook_secret", sa.String),
    sa.Column("hook_state", sa.String),
    sa.Column("hook_tries", sa.Integer, nullable=False, default=0),
    sa.Column("deaths_beside", sa.Integer, nullable=False, default=0),
    sa.Column("deaths_alone", sa.Integer, nullable=False, default=0),
    sa.Column("risk", sa.String),
    sa.Column("warnings", sa.Text),  # of the transcript; NULL: none, or none yet
    sa.Column("claimed_by", sa.String),  # the process that works on it
    sa.Column("claimed_until", sa.Float),  # by the database's clock; NULL: nobody has it
    sa.Column("hook_at", sa.Float),  # when the callback is due, likewise; NULL: at once
    sa.Column("trace", sa.String),  # W3C's traceparent, at which its trace goes on
    sa.Index("forescribe_jobs_of", "tenant", "created_at", "id"),
    sa.Index("forescribe_jobs_state", "state"),
    sa.Index("forescribe_jobs_hook", "hook_state"),
    sa.Index("forescribe_jobs_key", "tenant", "key", unique=True),
)

ENTRIES = sa.Table(
    "forescribe_entries",
    META,
    sa.Column("job", sa.String, primary_key=True),
    sa.Column("n", sa.Integer, primary_key=True),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("data", sa.Text, nullable=False),
)

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

EARLIER = "forescribe_refs"
"""A table of earlier versions, whose jobs are not read."""


@dataclass(frozen=True)
class Job:
    """A job's row. `run` counts submissions and retries: writes of an earlier run are refused."""

    id: str
    owner: str  # name of the API key
    state: State
    run: int
    kind: Kind
    label: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    total_s: float
    done_s: float
    options: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Names by role: audio, form, plan, group-0, group-1, ..., spoken, result, corrections-1, ..."""
    fingerprint: str | None = None
    error: tuple[str, str] | None = None
    callback: Callback | None = None
    deaths_beside: int = 0  # of processes that had other work too, since it last progressed
    deaths_alone: int = 0  # of those that had nothing else in hand
    risk: Risk | None = None
    warnings: tuple[Mapping[str, Any], ...] = ()  # code and message, from its transcript
    trace: str | None = None

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def speed(self) -> float | None:
        """Seconds of audio per second of wall time from start to end, downtime included."""
        if self.state != "succeeded" or self.started_at is None or self.finished_at is None:
            return None
        wall_s = self.finished_at - self.started_at
        return round(self.total_s / wall_s, 2) if wall_s > 0 else None

    def progress(self) -> dict[str, float]:
        return {"done_s": round(self.done_s, 3), "total_s": round(self.total_s, 3)}

    def view(self) -> dict[str, Any]:
        """The job's JSON for clients."""
        body: dict[str, Any] = {
            "id": self.id,
            "object": "job",
            "state": self.state,
            "label": self.label,
            "created_at": int(self.created_at),
            "started_at": None if self.started_at is None else int(self.started_at),
            "finished_at": None if self.finished_at is None else int(self.finished_at),
            "progress": self.progress(),
            "options": dict(self.options),
            "error": None,
            "warnings": [dict(warning) for warning in self.warnings],
            "speed": self.speed,
        }
        if self.error is not None:
            code, message = self.error
            body["error"] = {"code": code, "message": message}
        if self.callback is not None:
            body["webhook"] = {"state": self.callback.state, "tries": self.callback.tries}
        return body


@dataclass(frozen=True)
class NewJob:
    """A job to insert. `form` is the whole request, which is stored as a file; `options` is the part of
    it that clients see. `key` is an Idempotency-Key, with the fingerprint of the request."""

    id: str
    owner: str  # name of the API key
    label: str | None
    total_s: float
    form: Mapping[str, Any]
    options: Mapping[str, Any]
    callback: Callback | None = None
    trace: str | None = None
    key: tuple[str, str] | None = None


@dataclass(frozen=True)
class Claim:
    """A process's right to work on a run of a job. Writes without it are refused."""

    job: str
    run: int
    worker: str


@dataclass(frozen=True)
class Callback:
    """A webhook at the end of a job: URL, signing secret, and state of the delivery."""

    url: str
    secret: str | None  # deleted when nothing more will be sent
    state: CallbackState = "pending"
    tries: int = 0


@dataclass(frozen=True)
class LogEntry:
    """Entry number `n` of a job's log."""

    n: int
    kind: EntryKind
    data: Mapping[str, Any]


def bounded(text: str, most: int = MAX_TEXT) -> str:
    """The text, cut off where it is too long for a row: lists of jobs repeat it at each poll."""
    return text if len(text) <= most else f"{text[:most]}..."


def bounded_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with long texts and lists cut off; the whole request is stored as a file."""

    def cut(value: Any) -> Any:
        if isinstance(value, str):
            return bounded(value)
        if isinstance(value, (list, tuple)):
            return [cut(item) for item in value[:MAX_ITEMS]]
        return value

    return {name: cut(value) for name, value in options.items()}
