"""The seam to what carries work over a crash, and the plays that it carries.

A *play* is a function that calls named *steps* in an order that depends on their answers alone. An
engine runs plays; it records every step's answer, and a play that was cut short begins again with
the answers that are there. A step under way when the process died is done again, so steps can be
repeated. Answers are JSON: hashes, counts and codes, never text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..records import Work

if TYPE_CHECKING:
    from sqlalchemy import Connection


class Stopping(BaseException):
    """The process ends: the step has no answer. No Exception, so that no engine records it as one;
    whoever comes next does the step again."""


class Call(Protocol):
    """How a play calls a step by name."""

    def __call__(self, step: str, *args: str | int) -> Any: ...


Play = Callable[..., None]
"""play(call, *args)"""


@dataclass(frozen=True)
class Pending:
    """Work that was begun: `owner` is the executor that has it."""

    id: str
    owner: str | None


class JobEngine(Protocol):
    """Runs plays. What it must keep to is in tests/api/jobs/test_engines.py."""

    executor: str
    """This process, by a name that no other boot has."""

    def start(self, steps: Callable[..., Any], plays: Mapping[str, Play]) -> None:
        """From here on work is done, in threads of the engine's. `steps(name, *args)` has what a
        step answers."""

    def enqueue(self, tx: Connection, work: Work) -> None:
        """Queued when the transaction is committed, and only then."""

    def cancel(self, id: str) -> None:
        """No further step of it begins; one that is under way has its answer dropped."""

    def forget(self, job: str) -> None:
        """Nothing is left of all the work of a job, callbacks included; none of it begins again."""

    def pending(self) -> list[Pending]:
        """All work that was begun and has not ended, of all executors."""

    def running(self) -> frozenset[str]:
        """The ids of the work that this process is doing."""

    def broken(self, ids: Sequence[str]) -> frozenset[str]:
        """Those of the ids that have ended without a play's own end, or are not known."""

    def resume(self, id: str) -> None:
        """Queues work again that has lost its executor; answers that are there stay."""

    def adopt(self) -> int:
        """Takes over what is queued for plays of another version, and says how much that was. Answers that
        those had are dropped: the play begins anew, and its steps find in the rows what is done."""

    def stop(self) -> None:
        """Nothing more is begun. Steps that wait are told by their own means. All else can still be
        called."""

    def close(self) -> None:
        """Lets go of the database."""


def transcribe(call: Call, job: str, run: int) -> None:
    """A job from its audio to its end."""
    found = call("prepare", job, run)
    for k in range(found or 0):
        if call("group", job, run, k) is None:
            return  # somebody else's by now, or failed: the row says which
    if found is None or call("assemble", job, run) is None:
        return
    if call("diarize", job, run) is not None:
        call("finish", job, run)


def diarize(call: Call, job: str, run: int) -> None:
    """The speakers of a job that has its words."""
    if call("diarize", job, run) is not None:
        call("finish", job, run)


def webhook(call: Call, job: str, run: int, number: int) -> None:
    """One try; it queues the next."""
    call("deliver", job, run, number)


PLAYS: Mapping[str, Play] = {"transcribe": transcribe, "diarize": diarize, "webhook": webhook}
