"""The workflows of a job, and the interface of the engines that run them. Import is light.

A *workflow* is a function that calls named *steps* in an order that depends only on their answers. An
engine runs workflows and records every step's answer; a workflow that was interrupted runs again from its
beginning, and its steps return the recorded answers. A step that was running when the process died is
executed again, so steps must be repeatable. Answers are JSON: hashes, counts and codes, never text.

`Stopping` and `RunReplaced` end a step. Neither is an Exception, so that code which handles errors lets them
pass and no engine records them as answers. Does not know what the steps do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .tables import WorkItem

if TYPE_CHECKING:
    from sqlalchemy import Connection, Select


Workflow = Callable[..., None]
"""workflow(call, *args)"""


def transcribe(call: CallStep, job: str, run: int) -> None:
    """A job from its audio to its result."""
    groups = call("prepare", job, run)
    for k in range(groups or 0):
        if call("group", job, run, k) is None:
            return  # the run has been replaced or has failed: the row says which
    if groups is None or call("assemble", job, run) is None:
        return
    if call("diarize", job, run) is not None:
        call("finish", job, run)


def diarize(call: CallStep, job: str, run: int) -> None:
    """New speakers for a job that has its words."""
    if call("diarize", job, run) is not None:
        call("finish", job, run)


def webhook(call: CallStep, job: str, run: int, number: int) -> None:
    """One delivery attempt of a callback; the step queues the next attempt."""
    call("deliver", job, run, number)


WORKFLOWS: Mapping[str, Workflow] = {
    "transcribe": transcribe,
    "diarize": diarize,
    "webhook": webhook,
}


class JobEngine(Protocol):
    """Runs workflows. tests/api/jobs/test_engines.py holds the contract."""

    executor: str
    """The name of this process, unique to this start."""

    def start(self, steps: Callable[..., Any], workflows: Mapping[str, Workflow]) -> None:
        """Start working, in threads of the engine. `steps(name, *args)` executes a step."""

    def enqueue(self, tx: Connection, item: WorkItem) -> None:
        """Queue work when the transaction commits, and only then."""

    def cancel(self, id: str) -> None:
        """Start no further step of a work item; the answer of a running step is dropped."""

    def forget(self, job: str) -> None:
        """Cancel and delete all work of a job, callbacks included."""

    def pending(self) -> list[Pending]:
        """All work that was started and has not ended, of all executors."""

    def running(self) -> frozenset[str]:
        """The ids of the work that this process is doing."""

    def broken(self, tx: Connection, ids: Select[str]) -> list[str]:
        """Those of the ids, which a query in the engine's database gives, that are unknown or have ended.
        One statement, however many ids there are."""

    def resume(self, id: str, executor: str | None) -> None:
        """Queue work again that its executor has lost; recorded answers stay. Does nothing if another
        executor has it by now."""

    def adopt(self) -> int:
        """Take over work that was queued for another version of the workflows, and return its number.

        Recorded answers are dropped: the workflow starts anew, and its steps find in the rows what is done.
        """

    def stop(self) -> None:
        """Start nothing more. Waiting steps are stopped by their own means. All other methods can still
        be called."""

    def close(self) -> None:
        """Release the database."""


class CallStep(Protocol):
    """How a workflow calls a step by its name."""

    def __call__(self, step: str, *args: str | int) -> Any: ...


@dataclass(frozen=True)
class Pending:
    """Work that was started; `executor` is the process that has it."""

    id: str
    executor: str | None


class Stopping(BaseException):
    """The process is ending: the step has no answer, and the next process executes it again."""


class RunReplaced(BaseException):
    """The run is not the job's current one: it was cancelled, deleted or started again. Its results are
    dropped."""
