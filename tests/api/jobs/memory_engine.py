"""An engine for tests: threads and a dictionary.

Keeps the contract with one exception: work in progress is lost with the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, Select, event

from forescribe.api.jobs.tables import WorkItem, item_prefix
from forescribe.api.jobs.workflows import Pending, Stopping, Workflow


class _Cancelled(BaseException):
    """The work item was cancelled: execute no further step."""


class MemoryEngine:
    """Runs workflows in threads of this process. Answers are kept by work item and position."""

    def __init__(self, *, concurrency: int = 4) -> None:
        self.executor = f"memory-{uuid4().hex[:8]}"
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="job")
        self._lock = threading.Lock()
        self._work: dict[str, WorkItem] = {}  # what has not ended
        self._known: set[str] = set()
        self._cancelled: set[str] = set()
        self._running: set[str] = set()
        self._answers: dict[str, list[Any]] = {}
        self._timers: list[threading.Timer] = []
        self._steps: Callable[..., Any] | None = None
        self._workflows: Mapping[str, Workflow] = {}

    def start(self, steps: Callable[..., Any], workflows: Mapping[str, Workflow]) -> None:
        self._steps, self._workflows = steps, workflows

    def enqueue(self, tx: Connection, item: WorkItem) -> None:
        """Add the item when its connection goes back to the pool, if it has committed by then. The event
        of a commit comes before the commit itself, and other threads return theirs meanwhile."""
        committed: list[Connection] = []
        waiting, own = [item], tx.connection.dbapi_connection

        def returned(connection: object, *args: object) -> None:
            if connection is own and waiting:
                left = waiting.pop()
                if committed:
                    self._add(left)

        event.listen(tx, "commit", committed.append, once=True)
        event.listen(tx.engine.pool, "checkin", returned)

    def cancel(self, id: str) -> None:
        with self._lock:
            self._cancelled.add(id)
            self._work.pop(id, None)

    def forget(self, job: str) -> None:
        with self._lock:
            for id in [id for id in self._known if id.startswith(item_prefix(job))]:
                self._cancelled.add(id)
                self._work.pop(id, None)
                self._known.discard(id)

    def pending(self) -> list[Pending]:
        return [Pending(id, self.executor) for id in self.running()]

    def running(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._running)

    def broken(self, tx: Connection, ids: Select[str]) -> list[str]:
        asked = list(tx.execute(ids).scalars())
        with self._lock:
            return [id for id in asked if id not in self._work]

    def resume(self, id: str, executor: str | None) -> None:
        with self._lock:
            item = self._work.get(id)
        if item is not None:
            self._begin(item)

    def adopt(self) -> int:
        return 0  # no work outlives the process, so there is no other version

    def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        """There is no database."""

    def _add(self, item: WorkItem) -> None:
        with self._lock:
            if item.id in self._known:
                return
            self._known.add(item.id)
            self._work[item.id] = item
        if not item.delay_s:
            return self._begin(item)
        timer = threading.Timer(item.delay_s, self._begin, [item])
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _begin(self, item: WorkItem) -> None:
        with suppress(RuntimeError):  # stopped in the meantime
            self._pool.submit(self._run, item)

    def _run(self, item: WorkItem) -> None:
        with self._lock:
            if item.id not in self._work:
                return
            self._running.add(item.id)
        answers, at = self._answers.setdefault(item.id, []), 0

        def call(step: str, *args: str | int) -> Any:
            nonlocal at
            if at == len(answers):
                if item.id in self._cancelled:
                    raise _Cancelled
                assert self._steps is not None
                answers.append(self._steps(step, *args))
            at += 1
            return answers[at - 1]

        try:
            self._workflows[item.kind](call, *item.args)
        except Stopping:
            return
        except (_Cancelled, Exception):  # an exception in a step ends the workflow
            pass
        finally:
            with self._lock:
                self._running.discard(item.id)
        with self._lock:
            self._work.pop(item.id, None)
