"""Records of a job: what was asked for, what is known of it, and what clients see.

Times are unix seconds, lengths seconds of audio. Holds no text of a transcript.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
Kind = Literal["transcribe", "diarize"]
"""What a run of a job does: all of it, or the speakers alone."""

ENDED: frozenset[State] = frozenset({"succeeded", "failed", "cancelled"})
HookState = Literal["pending", "delivered", "failed", "gone"]


@dataclass(frozen=True)
class Hook:
    """A callback at the end of a job: where, signed with what, and how that went."""

    url: str
    secret: str | None  # forgotten when nothing more will be sent
    state: HookState = "pending"
    tries: int = 0


@dataclass(frozen=True)
class New:
    """A job that is to be. `form` is the whole request, which becomes a blob; `options` is the part of
    it that a list shows."""

    id: str
    tenant: str
    label: str | None
    total_s: float
    form: Mapping[str, Any]
    options: Mapping[str, Any]
    hook: Hook | None = None


@dataclass(frozen=True)
class Job:
    """A job's row. `run` counts how often it was begun by somebody's wish: what an earlier run still
    writes is refused."""

    id: str
    tenant: str
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
    error: tuple[str, str] | None = None
    hook: Hook | None = None
    crashes: int = 0  # of the process with the job alone inside, since it got on
    warnings: tuple[Mapping[str, Any], ...] = ()  # code and message, of its transcript

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def speed(self) -> float | None:
        """Seconds of audio per second, from its start to its end, pauses of the server included."""
        if self.state != "succeeded" or self.started_at is None or self.finished_at is None:
            return None
        wall_s = self.finished_at - self.started_at
        return round(self.total_s / wall_s, 2) if wall_s > 0 else None

    def progress(self) -> dict[str, float]:
        return {"done_s": round(self.done_s, 3), "total_s": round(self.total_s, 3)}

    def view(self) -> dict[str, Any]:
        """The job as clients see it."""
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
        if self.hook is not None:
            body["webhook"] = {"state": self.hook.state, "tries": self.hook.tries}
        return body


EntryKind = Literal["state", "progress", "segment"]


@dataclass(frozen=True)
class Entry:
    """Something that happened to a job, number `n` of its log."""

    n: int
    kind: EntryKind
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Work:
    """A piece of work for the engine: `kind` names the play. The same `id` twice is once."""

    kind: str
    id: str
    args: tuple[str | int, ...]
    delay_s: float = 0.0


def prefix(job: str) -> str:
    """How the ids of a job's work begin."""
    return f"{job}:"


def run_of(job: str, run: int, kind: Kind) -> Work:
    """The work that a run of a job is."""
    return Work(kind, f"{prefix(job)}{run}", (job, run))


def callback_of(job: str, run: int, number: int, delay_s: float = 0.0) -> Work:
    """The work that a try of a callback is."""
    return Work("webhook", f"{prefix(job)}{run}:webhook:{number}", (job, run, number), delay_s)
