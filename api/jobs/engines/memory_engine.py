"""An engine for tests: threads and a dictionary. Keeps to the contract but for one thing: what a
process that dies had under way is lost with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection

from ..records import Work, prefix
from ..store import after
from .workflow_engine import Pending, Play, Stopping


class _Cancelled(BaseException):
    """No further step."""


class InMemory:
    """Work that is done in threads of this process. Answers are kept by work and place."""

    def __init__(self, *, concurrency: int = 4) -> None:
        self.executor = f"memory-{uuid4().hex[:8]}"
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="job")
        self._lock = threading.Lock()
        self._work: dict[str, Work] = {}  # all that has not ended
        self._known: set[str] = set()
        self._cancelled: set[str] = set()
        self._running: set[str] = set()
        self._answers: dict[str, list[Any]] = {}
        self._timers: list[threading.Timer] = []
        self._steps: Callable[..., Any] | None = None
        self._plays: Mapping[str, Play] = {}

    def start(self, steps: Callable[..., Any], plays: Mapping[str, Play]) -> None:
        self._steps, self._plays = steps, plays

    def enqueue(self, tx: Connection, work: Work) -> None:
        after(tx, lambda: self._add(work))

    def cancel(self, id: str) -> None:
        with self._lock:
            self._cancelled.add(id)
            self._work.pop(id, None)

    def forget(self, job: str) -> None:
        with self._lock:
            for id in [id for id in self._known if id.startswith(prefix(job))]:
                self._cancelled.add(id)
                self._work.pop(id, None)
                self._known.discard(id)

    def pending(self) -> list[Pending]:
        return [Pending(id, self.executor) for id in self.running()]

    def running(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._running)

    def broken(self, ids: Any) -> frozenset[str]:
        with self._lock:
            return frozenset(id for id in ids if id not in self._work)

    def resume(self, id: str) -> None:
        with self._lock:
            work = self._work.get(id)
        if work is not None:
            self._begin(work)

    def adopt(self) -> int:
        return 0  # nothing outlives the process, so there is no other version

    def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        """There is none."""

    def _add(self, work: Work) -> None:
        with self._lock:
            if work.id in self._known:
                return
            self._known.add(work.id)
            self._work[work.id] = work
        if not work.delay_s:
            return self._begin(work)
        timer = threading.Timer(work.delay_s, self._begin, [work])
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _begin(self, work: Work) -> None:
        with suppress(RuntimeError):  # stopped meanwhile
            self._pool.submit(self._run, work)

    def _run(self, work: Work) -> None:
        with self._lock:
            if work.id not in self._work:
                return
            self._running.add(work.id)
        answers, at = self._answers.setdefault(work.id, []), 0

        def call(step: str, *args: str | int) -> Any:
            nonlocal at
            if at == len(answers):
                if work.id in self._cancelled:
                    raise _Cancelled
                assert self._steps is not None
                answers.append(self._steps(step, *args))
            at += 1
            return answers[at - 1]

        try:
            self._plays[work.kind](call, *work.args)
        except Stopping:
            return
        except (_Cancelled, Exception):  # what a play cannot go on from has ended it
            pass
        finally:
            with self._lock:
                self._running.discard(work.id)
        with self._lock:
            self._work.pop(work.id, None)
